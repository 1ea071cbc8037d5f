#pragma once

// Time in integer nanoseconds and size in integer bytes, as types. Arithmetic is exact and therefore
// order-free; costs are computed in double elsewhere and rounded once, on their way into a Duration.

#include <compare>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

namespace espalier {

// A whole number of one unit. Sums and differences stay in the unit; a count scales it.
template <class Unit>
class Quantity {
 public:
  constexpr Quantity() = default;
  constexpr explicit Quantity(std::int64_t count) : count_(count) {}

  constexpr std::int64_t count() const { return count_; }
  static constexpr Quantity max() { return Quantity(std::numeric_limits<std::int64_t>::max()); }

  friend constexpr auto operator<=>(Quantity, Quantity) = default;
  constexpr Quantity& operator+=(Quantity other) { return count_ += other.count_, *this; }
  constexpr Quantity& operator-=(Quantity other) { return count_ -= other.count_, *this; }
  friend constexpr Quantity operator+(Quantity a, Quantity b) { return a += b; }
  friend constexpr Quantity operator-(Quantity a, Quantity b) { return a -= b; }
  friend constexpr Quantity operator-(Quantity a) { return Quantity(-a.count_); }
  friend constexpr Quantity operator*(Quantity a, std::int64_t n) { return Quantity(a.count_ * n); }
  friend constexpr Quantity operator*(std::int64_t n, Quantity a) { return a * n; }
  friend constexpr Quantity operator/(Quantity a, std::int64_t n) { return Quantity(a.count_ / n); }

 private:
  std::int64_t count_ = 0;
};

using Duration = Quantity<struct NanosecondUnit>;
using Bytes = Quantity<struct ByteUnit>;
using BatchSize = Quantity<struct SampleUnit>;  // samples in a batch or micro-batch

constexpr Duration nanoseconds(std::int64_t n) {
  return Duration(n);
}
constexpr Duration microseconds(std::int64_t n) {
  return Duration(n * 1'000);
}
constexpr Duration milliseconds(std::int64_t n) {
  return Duration(n * 1'000'000);
}
constexpr Bytes kibibytes(std::int64_t n) {
  return Bytes(n << 10);
}
constexpr Bytes mebibytes(std::int64_t n) {
  return Bytes(n << 20);
}
constexpr Bytes gibibytes(std::int64_t n) {
  return Bytes(n << 30);
}

constexpr double to_milliseconds(Duration d) {
  return static_cast<double>(d.count()) / 1e6;
}
constexpr double to_seconds(Duration d) {
  return static_cast<double>(d.count()) / 1e9;
}

// 0 where `whole` is 0.
constexpr double ratio(Duration part, Duration whole) {
  return whole.count() != 0 ? static_cast<double>(part.count()) / static_cast<double>(whole.count()) : 0;
}
// 0.1 where `value` is a tenth above `base`; 0 where `base` is 0.
constexpr double relative_difference(Duration value, Duration base) {
  return base.count() != 0 ? ratio(value, base) - 1 : 0;
}

// Half away from zero. Throws InputError if the value is not finite or beyond 2^62: such a cost is wrong
// data.
Duration round_duration(double nanoseconds);
Bytes round_bytes(double bytes);

// ⌈bytes / bytes_per_second⌉ in nanoseconds, exact for all 63-bit arguments; bytes_per_second > 0.
// Saturates at 2^62.
Duration transfer_time(Bytes bytes, std::int64_t bytes_per_second);
// ⌈bytes · picoseconds_per_byte / 1000⌉ in nanoseconds, likewise; neither is negative.
Duration time_per_byte(Bytes bytes, std::int64_t picoseconds_per_byte);

// For people: "26.0 ms", "1.25 s", "812 ns"; "1.5 GiB", "64 KiB", "12 B". At most four significant digits.
std::string to_text(Duration duration);
std::string to_text(Bytes bytes);

// Exact and parsing back: "26ms", "500us", "1ns", "2s"; "16GiB", "64KiB", "12B" (the largest unit that
// divides). A negative one is for people: it is not read.
std::string to_exact_text(Duration duration);
std::string to_exact_text(Bytes bytes);

// "2.5ms", "16GiB", "80GB" (10^9), "12B", with or without a space: from 0 to 2^62, which is what JSON may
// hold too. Throws InputError naming the text.
Duration parse_duration(std::string_view text);
Bytes parse_bytes(std::string_view text);

// Bits per second as networks are sold, or bytes (B, KB, MB, GB, TB): "25Gb" → 3'125'000'000 bytes/s, "300GB"
// → 3e11 bytes/s.
std::int64_t parse_bandwidth(std::string_view text);

// In bytes per second, exact and parsing back: "3125MB", "900GB", "12345B".
std::string bandwidth_text(std::int64_t bytes_per_second);

}  // namespace espalier
