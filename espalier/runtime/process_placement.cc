#include "espalier/runtime/process_placement.h"

#include <malloc.h>
#include <sched.h>
#include <unistd.h>

namespace espalier {

std::vector<int> own_cores(const std::vector<int>& allowed, const World& world, std::uint32_t threads) {
  const std::size_t n = allowed.size(), workers = world.local_size;
  if (workers < 2 || n < workers * threads) return {};
  const auto begin = static_cast<std::ptrdiff_t>(n * world.local_rank / workers);
  const auto end = static_cast<std::ptrdiff_t>(n * (world.local_rank + 1) / workers);
  return {allowed.begin() + begin, allowed.begin() + end};
}

void keep_to_own_cores(const World& world, std::uint32_t threads) {
  if (world.scheduler_hints == SchedulerHints::kNone) return;
  cpu_set_t mine, parents;
  if (sched_getaffinity(0, sizeof(mine), &mine) != 0) return;
  if (sched_getaffinity(getppid(), sizeof(parents), &parents) != 0 || CPU_EQUAL(&mine, &parents) == 0) return;
  std::vector<int> allowed;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &mine)) allowed.push_back(core);
  }
  const std::vector<int> own = own_cores(allowed, world, threads);
  if (own.empty()) return;
  CPU_ZERO(&mine);
  for (const int core : own) CPU_SET(core, &mine);
  sched_setaffinity(0, sizeof(mine), &mine);
}

void keep_freed_memory() {
  constexpr int kGibibyte = 1 << 30;
  mallopt(M_TRIM_THRESHOLD, kGibibyte);
  mallopt(M_MMAP_THRESHOLD, kGibibyte);
  mallopt(M_TOP_PAD, 64 << 20);
}

void prepare_process(const World& world, std::uint32_t threads) {
  keep_freed_memory();
  keep_to_own_cores(world, threads);
}

}  // namespace espalier
