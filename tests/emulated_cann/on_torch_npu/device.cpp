// What torch_npu asks of the runtime besides, in terms of its own copy of CANN's headers.
#include <acl/acl.h>

#include <cstring>

#include "internal.h"

EXP aclError aclrtPointerGetAttributes(const void* p, aclrtPtrAttributes* attributes) {
    int device = 0;
    aclrtGetDevice(&device);
    memset(attributes, 0, sizeof *attributes);
    attributes->location.id = device;
    int kind = fakeMemoryKind(p);
    attributes->location.type = kind == 2   ? ACL_MEM_LOCATION_TYPE_DEVICE
                                : kind == 1 ? ACL_MEM_LOCATION_TYPE_HOST
                                            : ACL_MEM_LOCATION_TYPE_UNREGISTERED;
    return 0;
}
EXP aclError aclrtGetDeviceUtilizationRate(int32_t, aclrtUtilizationInfo* info) {
    memset(info, 0, sizeof *info);
    return 0;
}
EXP aclError aclGetCannAttributeList(const aclCannAttr** list, size_t* count) {
    static const aclCannAttr has[] = {ACL_CANN_ATTR_INF_NAN, ACL_CANN_ATTR_BF16, ACL_CANN_ATTR_JIT_COMPILE};
    *list = has;
    *count = 3;
    return 0;
}
EXP aclError aclGetCannAttribute(aclCannAttr attribute, int32_t* value) {
    *value = attribute != ACL_CANN_ATTR_JIT_COMPILE;  // operators come compiled
    return 0;
}
