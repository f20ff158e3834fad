/* MLX's products of float32 matrices: by the BLAS of its wheel, or by the OpenBLAS of NumPy's wheel, whose integers
 * have 64 bits. That on one thread, as the other cores have tests of their own. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef void (*Own)(int, int, int, int, int, int, float, const float *, int, const float *, int, float, float *, int);
typedef int64_t Int;
typedef void (*Open)(int, int, int, Int, Int, Int, float, const float *, Int, const float *, Int, float, float *, Int);

static _Atomic(Own) own;
static _Atomic(Open) numpys;
static _Atomic(int) by_openblas = -1;

static void *named(const char *library, const char *name) {
  void *opened = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  void *found = opened ? dlsym(opened, name) : NULL;
  if (!found) {
    fprintf(stderr, "%s\n", dlerror());
    abort();
  }
  return found;
}

void use_openblas(int wanted) { by_openblas = wanted; }

void cblas_sgemm(int order, int transpose_a, int transpose_b, int m, int n, int k, float alpha, const float *a, int lda,
                 const float *b, int ldb, float beta, float *c, int ldc) {
  if (by_openblas < 0) by_openblas = getenv(VARIABLE) != NULL;
  if (!by_openblas) {
    if (!own) own = (Own)named(OWN, "cblas_sgemm");
    own(order, transpose_a, transpose_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
    return;
  }
  if (!numpys) {
    ((void (*)(int))named(OPENBLAS, "scipy_openblas_set_num_threads64_"))(1);
    numpys = (Open)named(OPENBLAS, "scipy_cblas_sgemm64_");
  }
  numpys(order, transpose_a, transpose_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}
