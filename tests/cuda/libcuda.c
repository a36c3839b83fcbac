// A driver that runs nothing: every entry point that Triton's launcher needs succeeds, and what is
// asked of it is written down. Only for tests.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define MOST_LAUNCHES 4096
#define MOST_ARGUMENTS 64

typedef struct {
  uint32_t grid[3], block[3], shared;
  void *stream;
  void *attributes;
  uint32_t attribute_count;
} Config; // CUlaunchConfig

typedef struct {
  uint32_t id, pad;
  union {
    char bytes[64];
    int number;
  } value;
} Attribute; // CUlaunchAttribute

typedef struct {
  uint32_t grid[3], block[3], shared, cooperative;
  uint64_t stream, function, context;
  uint64_t arguments[MOST_ARGUMENTS];
} Launch;

Launch stub_launches[MOST_LAUNCHES];
int stub_launch_count = 0, stub_argument_count = 0, stub_module_count = 0, stub_registers = 32, stub_local_bytes = 0;
int stub_unloaded = 0, stub_capability = 90;
uint8_t stub_argument_bytes[MOST_ARGUMENTS];
static uint64_t context = 1;

int cuInit(unsigned flags) { return 0; }
int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
int cuDeviceGetCount(int *count) { *count = 2; return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
  switch (attribute) {
  case 10: *value = 32; break;                    // warp size
  case 12: *value = 65536; break;                 // registers of a block
  case 16: *value = 132; break;                   // multiprocessors
  case 75: *value = stub_capability / 10; break;  // capability, major
  case 76: *value = stub_capability % 10; break;  // and minor
  case 81: *value = 228 << 10; break;             // shared memory of a multiprocessor
  case 97: *value = 227 << 10; break;             // of a block
  default: *value = 1;
  }
  return 0;
}
int cuCtxGetCurrent(void **found) { *found = (void *)context; return 0; }
int cuCtxSetCurrent(void *wanted) { context = (uint64_t)wanted; return 0; }
int cuCtxGetDevice(int *device) { *device = (int)context - 1; return 0; }
int cuCtxGetLimit(size_t *value, int limit) { *value = 0; return 0; }
int cuCtxSetLimit(int limit, size_t value) { return 0; }
int cuDevicePrimaryCtxRetain(void **found, int device) {
  *found = (void *)(uint64_t)(device + 1);
  return 0;
}
int cuModuleLoadData(void **module, const void *image) {
  *module = (void *)(uint64_t)(1000 + stub_module_count++);
  return 0;
}
int cuModuleUnload(void *module) { stub_unloaded++; return 0; }
int cuModuleGetFunction(void **function, void *module, const char *name) {
  *function = module;
  return 0;
}
int cuFuncGetAttribute(int *value, int attribute, void *function) {
  switch (attribute) {
  case 0: *value = 1024; break;            // threads of a block
  case 3: *value = stub_local_bytes; break; // of a thread: what is spilled
  case 4: *value = stub_registers; break;  // of a thread
  default: *value = 0;
  }
  return 0;
}
int cuFuncSetAttribute(void *function, int attribute, int value) { return 0; }
int cuFuncSetCacheConfig(void *function, int config) { return 0; }
int cuPointerGetAttribute(void *data, int attribute, uint64_t pointer) {
  *(uint64_t *)data = pointer;
  return 0;
}
int cuPointerGetAttributes(unsigned count, int *attributes, void **data, uint64_t pointer) {
  for (unsigned k = 0; k < count; k++)
    *(uint64_t *)data[k] = pointer;
  return 0;
}
int cuStreamIsCapturing(void *stream, int *status) { *status = 0; return 0; }
int cuGetErrorString(int code, const char **text) { *text = "refused by the stub"; return 0; }
// Limited by registers alone: of a quarter of 65536 each warp takes a multiple of 256.
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *count, void *function, int threads,
                                                size_t shared) {
  int of_warp = (stub_registers * 32 + 255) / 256 * 256;
  *count = stub_registers > 256 ? 0 : 16384 / of_warp * 4 / (threads / 32);
  return 0;
}
int cuOccupancyMaxActiveClusters(int *count, void *function, void *config) { *count = 1; return 0; }
int cuTensorMapEncodeTiled() { return 0; }
int cuTensorMapEncodeIm2col() { return 0; }

int cuLaunchKernelEx(const Config *config, void *function, void **parameters, void **extra) {
  if (stub_launch_count == MOST_LAUNCHES)
    return 1;
  Launch *launch = &stub_launches[stub_launch_count++];
  memset(launch, 0, sizeof *launch);
  memcpy(launch->grid, config->grid, sizeof launch->grid);
  memcpy(launch->block, config->block, sizeof launch->block);
  launch->shared = config->shared;
  launch->stream = (uint64_t)config->stream;
  launch->function = (uint64_t)function;
  launch->context = context;
  const Attribute *attributes = config->attributes;
  for (uint32_t k = 0; k < config->attribute_count; k++)
    if (attributes[k].id == 2) // CU_LAUNCH_ATTRIBUTE_COOPERATIVE
      launch->cooperative = attributes[k].value.number;
  for (int k = 0; k < stub_argument_count; k++)
    memcpy(&launch->arguments[k], parameters[k], stub_argument_bytes[k]);
  return 0;
}
