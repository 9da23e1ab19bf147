// The few types and constants of the CANN interface that the emulation uses.  Written from the public ABI.
#pragma once
#include <cstddef>
#include <cstdint>
typedef int aclError;
typedef void *aclrtStream, *aclrtEvent, *aclrtContext, *aclrtDrvMemHandle;
enum {
    ACL_FLOAT = 0,
    ACL_FLOAT16 = 1,
    ACL_INT8 = 2,
    ACL_INT32 = 3,
    ACL_UINT8 = 4,
    ACL_INT16 = 6,
    ACL_UINT16 = 7,
    ACL_UINT32 = 8,
    ACL_INT64 = 9,
    ACL_UINT64 = 10,
    ACL_DOUBLE = 11,
    ACL_BOOL = 12,
    ACL_BF16 = 27
};
enum {
    ACL_ERROR_INVALID_PARAM = 100000,
    ACL_ERROR_RT_CONTEXT_NULL = 107002,
    ACL_ERROR_BAD_ALLOC = 200000,
    ACL_ERROR_API_NOT_SUPPORT = 200001,
    ACL_ERROR_INVALID_DEVICE = 200002,
    ACL_ERROR_INVALID_RESOURCE_HANDLE = 200005,
    ACL_ERROR_RT_MEMORY_ALLOCATION = 207001,
    ACL_ERROR_RT_QUEUE_EMPTY = 207013,
    ACL_ERROR_RT_REPORT_TIMEOUT = 507012,
    ACL_ERROR_RT_STREAM_SYNC_TIMEOUT = 507046,
    ACL_ERROR_RT_EVENT_SYNC_TIMEOUT = 507047
};
enum { ACL_MEMCPY_HOST_TO_DEVICE = 1 };

enum HcclResult {
    HCCL_SUCCESS = 0,
    HCCL_E_PARA = 1,
    HCCL_E_PTR = 2,
    HCCL_E_MEMORY = 3,
    HCCL_E_NOT_SUPPORT = 5,
    HCCL_E_SYSCALL = 8,
    HCCL_E_TIMEOUT = 9,
    HCCL_E_REMOTE = 21,
    HCCL_E_SUSPENDING = 22
};
typedef void* HcclComm;
enum HcclReduceOp { HCCL_REDUCE_SUM = 0, HCCL_REDUCE_PROD = 1, HCCL_REDUCE_MAX = 2, HCCL_REDUCE_MIN = 3 };
enum HcclDataType {
    HCCL_DATA_TYPE_INT8 = 0,
    HCCL_DATA_TYPE_INT16,
    HCCL_DATA_TYPE_INT32,
    HCCL_DATA_TYPE_FP16,
    HCCL_DATA_TYPE_FP32,
    HCCL_DATA_TYPE_INT64,
    HCCL_DATA_TYPE_UINT64,
    HCCL_DATA_TYPE_UINT8,
    HCCL_DATA_TYPE_UINT16,
    HCCL_DATA_TYPE_UINT32,
    HCCL_DATA_TYPE_FP64,
    HCCL_DATA_TYPE_BFP16,
    HCCL_DATA_TYPE_INT128,
    HCCL_DATA_TYPE_HIF8 = 14,
    HCCL_DATA_TYPE_FP8E4M3,
    HCCL_DATA_TYPE_FP8E5M2,
    HCCL_DATA_TYPE_FP8E8M0
};
struct HcclRootInfo {
    char internal[4108];
};
struct HcclCommConfig {
    char reserved[24];
    uint32_t hcclBufferSize, hcclDeterministic;
    char hcclCommName[128];
};  // the leading part
enum HcclSendRecvType { HCCL_SEND = 0, HCCL_RECV = 1 };
struct HcclSendRecvItem {
    HcclSendRecvType sendRecvType;
    void* buf;
    uint64_t count;
    HcclDataType dataType;
    uint32_t remoteRank;
};
enum { COMM_NAME_MAX_LENGTH = 128 };

#include "internal.h"
