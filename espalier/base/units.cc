#include "espalier/base/units.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <optional>

#include "espalier/base/check.h"

namespace espalier {
namespace {

constexpr std::int64_t kLimit = std::int64_t{1} << 62;

struct UnitName {
  std::string_view name;
  std::int64_t size;
};
constexpr std::array<UnitName, 4> kTimeUnits{
    {{"s", 1'000'000'000}, {"ms", 1'000'000}, {"us", 1'000}, {"ns", 1}}};
constexpr std::array<UnitName, 5> kByteUnits{
    {{"TiB", 1LL << 40}, {"GiB", 1LL << 30}, {"MiB", 1LL << 20}, {"KiB", 1LL << 10}, {"B", 1}}};
constexpr std::array<UnitName, 5> kDecimalByteUnits{
    {{"TB", 1'000'000'000'000}, {"GB", 1'000'000'000}, {"MB", 1'000'000}, {"KB", 1'000}, {"B", 1}}};

std::int64_t round_count(double value, const char* what) {
  if (!(std::abs(value) < static_cast<double>(kLimit))) {
    throw InputError(std::string(what) + " is not a number that fits: expected below 4.6e18");
  }
  return std::llround(value);
}

template <std::size_t N>
std::string readable(std::int64_t count, const std::array<UnitName, N>& units) {
  const UnitName* unit = &units.back();
  for (const UnitName& candidate : units) {
    if (std::abs(count) >= candidate.size) {
      unit = &candidate;
      break;
    }
  }
  char text[64];
  const double value = static_cast<double>(count) / static_cast<double>(unit->size);
  if (unit->size == 1) {
    std::snprintf(text, sizeof text, "%lld %s", static_cast<long long>(count), unit->name.data());
  } else {
    const int decimals = std::abs(value) < 10 ? 2 : 1;
    std::snprintf(text, sizeof text, "%.*f %s", decimals, value, unit->name.data());
  }
  return text;
}

template <std::size_t N>
std::string exact(std::int64_t count, const std::array<UnitName, N>& units) {
  for (const UnitName& unit : units) {
    if (count != 0 && count % unit.size == 0)
      return std::to_string(count / unit.size) + std::string(unit.name);
  }
  return std::to_string(count) + std::string(units.back().name);
}

struct NumberAndUnit {
  double number;
  std::optional<std::int64_t> whole;  // the number where it was written without a point or an exponent
  std::string_view unit;

  // Exact for whole numbers, so that values beyond 2^53 parse back too.
  std::int64_t times(std::int64_t size, const char* what) const {
    if (whole && *whole <= kLimit / size && *whole >= -kLimit / size) return *whole * size;
    return round_count(number * static_cast<double>(size), what);
  }
};

std::optional<NumberAndUnit> split_number(std::string_view text) {
  NumberAndUnit result{};
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, result.number);
  if (error != std::errc()) return std::nullopt;
  std::int64_t whole = 0;
  if (const auto [stop, bad] = std::from_chars(text.data(), end, whole); bad == std::errc() && stop == rest) {
    result.whole = whole;
  }
  result.unit = std::string_view(rest, static_cast<std::size_t>(end - rest));
  while (!result.unit.empty() && result.unit.front() == ' ') result.unit.remove_prefix(1);
  return result;
}

std::int64_t not_negative(std::int64_t count, std::string_view text) {
  if (count >= 0) return count;
  throw InputError("'" + std::string(text.substr(0, 60)) + "' is negative: expected at least 0");
}

// ⌈count · numerator / denominator⌉, none negative, at most 2^62. Division of 128 bits takes several times as
// long as of 64, and planners ask often.
Duration scaled_up(std::int64_t count, std::int64_t numerator, std::int64_t denominator) {
  __extension__ using Wide = __int128;
  std::int64_t product = 0;
  if (!__builtin_mul_overflow(count, numerator, &product) &&
      !__builtin_add_overflow(product, denominator - 1, &product)) {
    return Duration(std::min(product / denominator, kLimit));
  }
  const Wide time = (static_cast<Wide>(count) * numerator + denominator - 1) / denominator;
  return Duration(time > kLimit ? kLimit : static_cast<std::int64_t>(time));
}

}  // namespace

Duration round_duration(double nanoseconds) {
  return Duration(round_count(nanoseconds, "a time in ns"));
}
Bytes round_bytes(double bytes) {
  return Bytes(round_count(bytes, "a size in bytes"));
}

Duration transfer_time(Bytes bytes, std::int64_t bytes_per_second) {
  return scaled_up(bytes.count(), 1'000'000'000, bytes_per_second);
}
Duration time_per_byte(Bytes bytes, std::int64_t picoseconds_per_byte) {
  return scaled_up(bytes.count(), picoseconds_per_byte, 1'000);
}

std::string to_text(Duration duration) {
  return readable(duration.count(), kTimeUnits);
}
std::string to_text(Bytes bytes) {
  return readable(bytes.count(), kByteUnits);
}
std::string to_exact_text(Duration duration) {
  return exact(duration.count(), kTimeUnits);
}
std::string to_exact_text(Bytes bytes) {
  return exact(bytes.count(), kByteUnits);
}

std::string bandwidth_text(std::int64_t bytes_per_second) {
  return exact(bytes_per_second, kDecimalByteUnits);
}

Duration parse_duration(std::string_view text) {
  if (const auto parts = split_number(text)) {
    for (const UnitName& unit : kTimeUnits) {
      if (parts->unit == unit.name)
        return Duration(not_negative(parts->times(unit.size, "a time in ns"), text));
    }
  }
  throw InputError("'" + std::string(text) +
                   "' is not a time: expected a number and ns, us, ms or s, such as 2.5ms");
}

Bytes parse_bytes(std::string_view text) {
  if (const auto parts = split_number(text)) {
    for (const UnitName& unit : kByteUnits) {
      if (parts->unit == unit.name)
        return Bytes(not_negative(parts->times(unit.size, "a size in bytes"), text));
    }
    for (const UnitName& unit : kDecimalByteUnits) {
      if (parts->unit == unit.name)
        return Bytes(not_negative(parts->times(unit.size, "a size in bytes"), text));
    }
  }
  throw InputError("'" + std::string(text) +
                   "' is not a size: expected a number and B, KiB, MiB, GiB or GB, such as 16GiB");
}

std::int64_t parse_bandwidth(std::string_view text) {
  if (const auto parts = split_number(text)) {
    constexpr std::array<UnitName, 3> kBits{{{"Tb", 125'000'000'000}, {"Gb", 125'000'000}, {"Mb", 125'000}}};
    std::optional<std::int64_t> rate;
    for (const UnitName& unit : kBits) {
      if (parts->unit == unit.name) rate = parts->times(unit.size, "a bandwidth");
    }
    for (const UnitName& unit : kDecimalByteUnits) {
      if (parts->unit == unit.name) rate = parts->times(unit.size, "a bandwidth");
    }
    if (rate && *rate >= 1) return *rate;
  }
  throw InputError(
      "'" + std::string(text) +
      "' is not a bandwidth: expected such as 25Gb (bits per second) or 300GB (bytes per second)");
}

}  // namespace espalier
