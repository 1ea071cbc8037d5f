#pragma once

// Seeded random numbers that are the same on every machine and compiler, unlike the distributions of
// <random>.

#include <cstdint>
#include <initializer_list>

namespace espalier {

// One step of splitmix64 (Steele, Lea, Flood, OOPSLA'14): a bijection that mixes all bits.
constexpr std::uint64_t mix64(std::uint64_t z) {
  z += 0x9e3779b97f4a7c15;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

// A key from a seed and a tuple, such as (step, micro-batch, operator): the random stream of that tuple,
// whatever the plan. The Python exporter's reference computes the same numbers.
constexpr std::uint64_t stream_key(std::uint64_t seed, std::initializer_list<std::uint64_t> tuple) {
  std::uint64_t h = seed;
  for (const std::uint64_t value : tuple) h = mix64(h ^ (value + 0x9e3779b97f4a7c15 + (h << 6) + (h >> 2)));
  return h & 0x7fffffffffffffff;
}

class Rng {
 public:
  explicit Rng(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() { return mix64(state_++); }

  // Uniform in [0, bound), bound > 0, without modulo bias (Lemire, TOMACS'19).
  std::uint64_t below(std::uint64_t bound);

  // Uniform in [0, 1), 53 random bits.
  double unit() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }

 private:
  std::uint64_t state_;
};

}  // namespace espalier
