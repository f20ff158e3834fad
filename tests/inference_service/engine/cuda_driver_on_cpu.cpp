// What `cuda_copies` calls of CUDA's driver, over the host's memory. Copies are refused where a thread has no context, and
// to the device out of memory that is not page-locked.

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

namespace {
enum Error { SUCCESS, INVALID_VALUE, OUT_OF_MEMORY, INVALID_CONTEXT = 201 };
char context;
thread_local void* current = nullptr;
std::mutex mutex;
std::map<char*, size_t> locked;

bool is_locked(char* start, size_t count) {
  std::lock_guard<std::mutex> guard(mutex);
  for (auto& [memory, size] : locked) {
    if (memory <= start && start + count <= memory + size) return true;
  }
  return false;
}
}  // namespace

extern "C" {
int cuInit(unsigned) { return SUCCESS; }

int cuDeviceGet(int* device, int number) {
  *device = number;
  return SUCCESS;
}

int cuDevicePrimaryCtxRetain(void** found, int) {
  *found = &context;
  return SUCCESS;
}

int cuCtxSetCurrent(void* wanted) {
  current = wanted;
  return SUCCESS;
}

int cuMemcpyDtoH_v2(void* to, unsigned long long from, size_t count) {
  if (current != &context) return INVALID_CONTEXT;
  if (!from) return INVALID_VALUE;
  memcpy(to, reinterpret_cast<void*>(from), count);
  return SUCCESS;
}

int cuMemcpyHtoD_v2(unsigned long long to, void* from, size_t count) {
  if (current != &context) return INVALID_CONTEXT;
  if (!to || !is_locked(static_cast<char*>(from), count)) return INVALID_VALUE;
  memcpy(reinterpret_cast<void*>(to), from, count);
  return SUCCESS;
}

int cuMemAllocHost_v2(void** memory, size_t count) {
  if (current != &context) return INVALID_CONTEXT;
  if (count > (size_t{1} << 40) || !(*memory = malloc(count))) return OUT_OF_MEMORY;
  std::lock_guard<std::mutex> guard(mutex);
  locked[static_cast<char*>(*memory)] = count;
  return SUCCESS;
}

int cuMemFreeHost(void* memory) {
  std::lock_guard<std::mutex> guard(mutex);
  if (!locked.erase(static_cast<char*>(memory))) return INVALID_VALUE;
  free(memory);
  return SUCCESS;
}

int cuGetErrorName(int error, const char** name) {
  *name = error == INVALID_VALUE ? "CUDA_ERROR_INVALID_VALUE"
          : error == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY"
          : error == INVALID_CONTEXT ? "CUDA_ERROR_INVALID_CONTEXT"
                                     : nullptr;
  return *name ? SUCCESS : INVALID_VALUE;
}
}
