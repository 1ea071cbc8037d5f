#include "espalier/zoo/tiled_algebra.h"

#include <optional>

namespace espalier {
namespace {

// Writes tasks one after the other, each of which works in place on one tile.
class TiledWriter {
 public:
  TiledWriter(std::string name, std::int64_t n, Bytes tile_bytes)
      : graph_(std::move(name)), n_(n), tile_bytes_(tile_bytes), last_(static_cast<std::size_t>(n * n)) {}

  // The last task on tile (i, j).
  std::size_t on(std::int64_t i, std::int64_t j) const { return *last_[index(i, j)]; }

  // Kernel `what` of step k on tile (i, j) reads that tile and what these tasks gave.
  std::size_t kernel(const std::string& what, std::int64_t i, std::int64_t j, std::int64_t k, double time,
                     std::vector<std::size_t> reads) {
    std::optional<std::size_t>& last = last_[index(i, j)];
    if (last) reads.push_back(*last);
    const std::string name =
        what + "." + std::to_string(k) + "." + std::to_string(i) + "." + std::to_string(j);
    last = graph_.add({name, what, time, 1, last ? Bytes() : tile_bytes_}, std::move(reads));
    return *last;
  }

  TaskDag take() { return std::move(graph_); }

 private:
  std::size_t index(std::int64_t i, std::int64_t j) const { return static_cast<std::size_t>(i * n_ + j); }

  TaskDag graph_;
  std::int64_t n_;
  Bytes tile_bytes_;
  std::vector<std::optional<std::size_t>> last_;
};

}  // namespace

TaskDag tiled_cholesky(std::int64_t n, Bytes tile_bytes) {
  TiledWriter out("cholesky-" + std::to_string(n), n, tile_bytes);
  for (std::int64_t k = 0; k < n; ++k) {
    const std::size_t diagonal = out.kernel("potrf", k, k, k, 1.0 / 3, {});
    for (std::int64_t i = k + 1; i < n; ++i) out.kernel("trsm", i, k, k, 1, {diagonal});
    for (std::int64_t i = k + 1; i < n; ++i) {
      for (std::int64_t j = k + 1; j < i; ++j) out.kernel("gemm", i, j, k, 2, {out.on(i, k), out.on(j, k)});
      out.kernel("syrk", i, i, k, 1, {out.on(i, k)});
    }
  }
  return out.take();
}

TaskDag tiled_lu(std::int64_t n, Bytes tile_bytes) {
  TiledWriter out("lu-" + std::to_string(n), n, tile_bytes);
  for (std::int64_t k = 0; k < n; ++k) {
    const std::size_t diagonal = out.kernel("getrf", k, k, k, 2.0 / 3, {});
    for (std::int64_t j = k + 1; j < n; ++j) out.kernel("trsm_row", k, j, k, 1, {diagonal});
    for (std::int64_t i = k + 1; i < n; ++i) out.kernel("trsm_column", i, k, k, 1, {diagonal});
    for (std::int64_t i = k + 1; i < n; ++i) {
      for (std::int64_t j = k + 1; j < n; ++j) out.kernel("gemm", i, j, k, 2, {out.on(i, k), out.on(k, j)});
    }
  }
  return out.take();
}

TaskDag tiled_qr(std::int64_t n, Bytes tile_bytes) {
  TiledWriter out("qr-" + std::to_string(n), n, tile_bytes);
  for (std::int64_t k = 0; k < n; ++k) {
    std::size_t triangle = out.kernel("geqrt", k, k, k, 4.0 / 3, {});
    std::vector<std::size_t> row(static_cast<std::size_t>(n));  // the last task on tile (k, j)
    for (std::int64_t j = k + 1; j < n; ++j)
      row[static_cast<std::size_t>(j)] = out.kernel("unmqr", k, j, k, 2, {triangle});
    for (std::int64_t i = k + 1; i < n; ++i) {
      triangle = out.kernel("tsqrt", i, k, k, 2, {triangle});
      for (std::int64_t j = k + 1; j < n; ++j) {
        std::size_t& above = row[static_cast<std::size_t>(j)];
        above = out.kernel("tsmqr", i, j, k, 4, {triangle, above});
      }
    }
  }
  return out.take();
}

}  // namespace espalier
