/* MLX's products of float32 matrices: by our own loops, or by the OpenBLAS of NumPy's wheel, whose integers have 64
 * bits. That on one thread, as the other cores have tests of their own.
 *
 * Ours are bit for bit those of the reference BLAS in MLX's wheel: each element is added up by itself, along the inner
 * dimension from its beginning, in roundings of its own (-ffp-contract=off). So what is made of a row is the same in a
 * product of any size. Only that several rows and columns are computed side by side, which is many times as fast. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROW_MAJOR = 101, NO_TRANS = 111 };
enum { ROWS = 6, LANES = 8, COLUMNS = 2 * LANES };

typedef float Lanes __attribute__((vector_size(sizeof(float) * LANES), aligned(4), may_alias));
typedef int64_t Int;
typedef void (*Open)(int, int, int, Int, Int, Int, float, const float *, Int, const float *, Int, float, float *, Int);

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

/* A matrix as it is read: element (i, j) is at[i * row + j * column]. */
typedef struct {
  const float *at;
  Int row, column;
} Matrix;

/* To `sums` are added some rows of `a`, times `alpha`, times COLUMNS columns of `b`, which lie side by side, `b_row`
 * apart from one row to the next. */
static inline __attribute__((always_inline)) void tile(int rows, int k, float alpha, Matrix a, const float *b,
                                                       Int b_row, float (*sums)[COLUMNS]) {
  Lanes added[ROWS][2];
  memcpy(added, sums, sizeof *sums * rows);
  for (int l = 0; l < k; l++) {
    const Lanes left = *(const Lanes *)(b + l * b_row), right = *(const Lanes *)(b + l * b_row + LANES);
    for (int i = 0; i < rows; i++) {
      const float factor = alpha * a.at[i * a.row + l * a.column];
      added[i][0] += factor * left;
      added[i][1] += factor * right;
    }
  }
  memcpy(sums, added, sizeof *sums * rows);
}

/* COLUMNS columns of `b` side by side, those beyond the `columns` that it has with zeros. */
static void pack(int k, int columns, Matrix b, float *packed) {
  for (int l = 0; l < k; l++)
    for (int j = 0; j < COLUMNS; j++)
      packed[(Int)l * COLUMNS + j] = j < columns ? b.at[l * b.row + j * b.column] : 0.0f;
}

/* C = alpha A B + beta C. Where the reference goes along the columns of its first matrix, it adds to beta C, and each
 * factor is alpha times that of its second matrix; else C and alpha come in at the end. Its first is our second. */
static void multiply(int m, int n, int k, float alpha, Matrix a, Matrix b, float beta, float *c, int ldc, int adds) {
  float *packed = malloc(sizeof(float) * COLUMNS * (k ? k : 1));
  if (!packed) abort();
  for (int j = 0; j < n; j += COLUMNS) {
    const int columns = n - j < COLUMNS ? n - j : COLUMNS;
    const Matrix panel = {b.at + j * b.column, b.row, b.column};
    const int as_it_is = b.column == 1 && columns == COLUMNS && m <= ROWS;
    if (!as_it_is) pack(k, columns, panel, packed);
    const float *side_by_side = as_it_is ? panel.at : packed;
    const Int b_row = as_it_is ? b.row : COLUMNS;
    for (int i = 0; i < m; i += ROWS) {
      const int rows = m - i < ROWS ? m - i : ROWS;
      const Matrix some = {a.at + i * a.row, a.row, a.column};
      float *to = c + (Int)i * ldc + j, sums[ROWS][COLUMNS] = {0};
      for (int r = 0; adds && beta != 0.0f && r < rows; r++)
        for (int s = 0; s < columns; s++) sums[r][s] = beta * to[(Int)r * ldc + s];
      const float factor = adds ? alpha : 1.0f;
      switch (rows) {
        case 1: tile(1, k, factor, some, side_by_side, b_row, sums); break;
        case 2: tile(2, k, factor, some, side_by_side, b_row, sums); break;
        case 3: tile(3, k, factor, some, side_by_side, b_row, sums); break;
        case 4: tile(4, k, factor, some, side_by_side, b_row, sums); break;
        case 5: tile(5, k, factor, some, side_by_side, b_row, sums); break;
        default: tile(ROWS, k, factor, some, side_by_side, b_row, sums);
      }
      for (int r = 0; r < rows; r++, to += ldc)
        for (int s = 0; s < columns; s++) {
          if (adds) to[s] = sums[r][s];
          else to[s] = beta == 0.0f ? alpha * sums[r][s] : alpha * sums[r][s] + beta * to[s];
        }
    }
  }
  free(packed);
}

void cblas_sgemm(int order, int transpose_a, int transpose_b, int m, int n, int k, float alpha, const float *a, int lda,
                 const float *b, int ldb, float beta, float *c, int ldc) {
  if (by_openblas < 0) by_openblas = getenv(VARIABLE) != NULL;
  if (!by_openblas) {
    const int by_rows_a = (transpose_a == NO_TRANS) == (order == ROW_MAJOR);
    const int by_rows_b = (transpose_b == NO_TRANS) == (order == ROW_MAJOR);
    const Matrix left = {a, by_rows_a ? lda : 1, by_rows_a ? 1 : lda};
    const Matrix right = {b, by_rows_b ? ldb : 1, by_rows_b ? 1 : ldb};
    if (order == ROW_MAJOR) {
      multiply(m, n, k, alpha, left, right, beta, c, ldc, transpose_b == NO_TRANS);
    } else { /* columns of C are rows of its transpose, which is B's times A's */
      const Matrix first = {b, right.column, right.row}, second = {a, left.column, left.row};
      multiply(n, m, k, alpha, first, second, beta, c, ldc, transpose_a == NO_TRANS);
    }
    return;
  }
  if (!numpys) {
    ((void (*)(int))named(OPENBLAS, "scipy_openblas_set_num_threads64_"))(1);
    numpys = (Open)named(OPENBLAS, "scipy_cblas_sgemm64_");
  }
  numpys(order, transpose_a, transpose_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}
