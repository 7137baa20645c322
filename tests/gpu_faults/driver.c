// Stands in for the NVIDIA driver's library (libcuda.so.1), x86-64: hands every call on to the real one until it is told to fail
// all of them, as a GPU that fell off the bus does. For faults.py beside this file.
//   DRIVER_REAL: path of the real library; without it there is no GPU
//   DRIVER_VERSION: what cuDriverGetVersion tells instead of the truth
//   DRIVER_FAULT: path; once a file is there every call gives the error whose number it holds, or with "hang" never returns
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { kSlots = 1024, kNoDevice = 100, kNotFound = 500, kHang = -1 };

int lk_fault;              // what calls return; 0: they are handed on
void* lk_real[kSlots];     // where to
extern char lk_slots[];    // 32 bytes of code each
static char* names[kSlots];
static int used;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static void* real_library;

int lk_fail(void) {
  while (lk_fault == kHang) pause();
  return lk_fault;
}

// The arguments of the call stay where they are: in registers and on the stack.
__asm__(
    ".text\n"
    ".balign 32\n"
    ".globl lk_slots\n.hidden lk_slots\n.hidden lk_fault\n.hidden lk_real\n.hidden lk_fail\n"
    "lk_slots:\n"
    ".set lk_i, 0\n"
    ".rept 1024\n"
    ".balign 32\n"
    "cmpl $0, lk_fault(%rip)\n"
    "jne lk_fail\n"
    "jmp *lk_real+8*lk_i(%rip)\n"
    ".set lk_i, lk_i+1\n"
    ".endr\n");

static void* watch(void* path) {
  for (;;) {
    FILE* file = fopen(path, "r");
    char text[32] = "";
    if (file) {
      if (fgets(text, sizeof text, file)) {
        lk_fault = strncmp(text, "hang", 4) == 0 ? kHang : atoi(text);
        fclose(file);
        return NULL;
      }
      fclose(file);
    }
    usleep(2000);
  }
}

__attribute__((constructor)) static void begin(void) {
  const char* real = getenv("DRIVER_REAL");
  if (real) real_library = dlopen(real, RTLD_NOW | RTLD_LOCAL);
  char* fault = getenv("DRIVER_FAULT");
  pthread_t thread;
  if (fault && pthread_create(&thread, NULL, watch, fault) == 0) pthread_detach(thread);
}

// Code that calls `function` while all is well.
static void* slot_of(const char* name, void* function) {
  if (strncmp(name, "cuGetError", 10) == 0 || !function) return function;
  pthread_mutex_lock(&mutex);
  int i = 0;
  while (i < used && (lk_real[i] != function || strcmp(names[i], name) != 0)) ++i;
  if (i == used) {
    if (used == kSlots) abort();
    names[used] = strdup(name);
    lk_real[used++] = function;
  }
  pthread_mutex_unlock(&mutex);
  return lk_slots + 32 * i;
}

int cuDriverGetVersion(int* version) {
  const char* told = getenv("DRIVER_VERSION");
  int (*real)(int*) = real_library ? dlsym(real_library, "cuDriverGetVersion") : NULL;
  if (told) return *version = atoi(told), 0;
  return real ? real(version) : (*version = 13000, 0);
}

int cuInit(unsigned flags) {
  int (*real)(unsigned) = real_library ? dlsym(real_library, "cuInit") : NULL;
  if (lk_fault) return lk_fail();
  return real ? real(flags) : kNoDevice;
}

int cuGetProcAddress_v2(const char*, void**, int, unsigned long, int*);
int cuGetProcAddress(const char*, void**, int, unsigned long);

// What is ours instead of the driver's.
static void* own(const char* name, int version) {
  if (strcmp(name, "cuDriverGetVersion") == 0) return cuDriverGetVersion;
  if (strcmp(name, "cuInit") == 0) return cuInit;
  if (strcmp(name, "cuGetProcAddress") == 0)
    return version >= 12000 ? (void*)cuGetProcAddress_v2 : (void*)cuGetProcAddress;
  if (strcmp(name, "cuGetProcAddress_v2") == 0) return cuGetProcAddress_v2;
  return NULL;
}

int cuGetProcAddress_v2(const char* name, void** function, int version, unsigned long flags, int* status) {
  int (*real)(const char*, void**, int, unsigned long, int*) =
      real_library ? dlsym(real_library, "cuGetProcAddress_v2") : NULL;
  *function = own(name, version);
  if (status) *status = *function ? 0 : 1;
  if (*function) return 0;
  if (!real) return kNotFound;
  const int code = real(name, function, version, flags, status);
  if (code == 0) *function = slot_of(name, *function);
  return code;
}

int cuGetProcAddress(const char* name, void** function, int version, unsigned long flags) {
  return cuGetProcAddress_v2(name, function, version, flags, NULL);
}
