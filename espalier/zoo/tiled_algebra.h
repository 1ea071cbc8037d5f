#pragma once

// Factorizations of a matrix in n × n tiles as task graphs, right-looking, one task for each kernel on a tile
// (Buttari, Langou, Kurzak, Dongarra, Parallel Computing 2009; the graphs of PLASMA and of READYS).
//
//            tasks                     edges
//   cholesky n(n+1)(n+2)/6             3·n(n-1)/2 + 3·n(n-1)(n-2)/6
//   lu       n(n+1)(2n+1)/6            n(n-1) + 3·(n-1)n(2n-1)/6       without pivoting
//   qr       n(n+1)(2n+1)/6            n(n-1) + 3·(n-1)n(2n-1)/6       rows of tiles one below the other
//
// An edge is a tile that the next task on it, or a task beside it, reads; a task gives one tile. A task of
// the first step stores the tile of the matrix that it works on. Times are the kernels' leading terms, in b³
// floating-point operations of a tile of b × b: potrf 1/3, trsm 1, syrk 1, gemm 2; getrf 2/3; geqrt 4/3,
// unmqr 2, tsqrt 2, tsmqr 4.

#include "espalier/zoo/task_dag.h"

namespace espalier {

// n from 1 on. `tile_bytes` of the matrix for each tile.
TaskDag tiled_cholesky(std::int64_t n, Bytes tile_bytes);
TaskDag tiled_lu(std::int64_t n, Bytes tile_bytes);
TaskDag tiled_qr(std::int64_t n, Bytes tile_bytes);

}  // namespace espalier
