// The interface between the emulation's own libraries: nothing of it is CANN's.
#pragma once
#define EXP extern "C" __attribute__((visibility("default")))
extern "C" {
// Run fn(arg) on the stream's worker, in stream order.  The result is 0 or an ACL
// error code, which poisons the stream.  fn owns arg.
void fakeStreamPush(void* stream, int (*fn)(void*), void* arg);
int fakeStreamId(void* stream);
void fakeSetErrMsg(const char* msg);  // for aclGetRecentErrMsg
int fakeDeviceError(void);            // sticky, 0 = healthy
int fakeMemoryKind(const void* p);    // 0: neither, 1: pinned or registered host memory, 2: device memory
}
