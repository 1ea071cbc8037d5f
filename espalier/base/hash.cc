#include "espalier/base/hash.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace espalier {
namespace {

// XXH64's primes, by the specification's numbers less one.
constexpr std::array<std::uint64_t, 5> kPrimes{0x9e3779b185ebca87, 0xc2b2ae3d27d4eb4f, 0x165667b19e3779f9,
                                               0x85ebca77c2b2ae63, 0x27d4eb2f165667c5};

template <class T>
T little_endian(const unsigned char* bytes) {
  T value = 0;
  if constexpr (std::endian::native == std::endian::little) {
    std::memcpy(&value, bytes, sizeof value);
  } else {
    for (std::size_t i = sizeof value; i-- > 0;) value = static_cast<T>(value << 8 | bytes[i]);
  }
  return value;
}

std::uint64_t round_of(std::uint64_t lane, std::uint64_t input) {
  return std::rotl(lane + input * kPrimes[1], 31) * kPrimes[0];
}

void add_stripe(std::array<std::uint64_t, 4>& lanes, const unsigned char* stripe) {
  for (std::size_t i = 0; i < 4; ++i)
    lanes[i] = round_of(lanes[i], little_endian<std::uint64_t>(stripe + 8 * i));
}

std::uint64_t add_rest(std::uint64_t hash, const unsigned char* rest, std::size_t size) {
  std::size_t i = 0;
  for (; i + 8 <= size; i += 8) {
    hash ^= round_of(0, little_endian<std::uint64_t>(rest + i));
    hash = std::rotl(hash, 27) * kPrimes[0] + kPrimes[3];
  }
  if (i + 4 <= size) {
    hash ^= little_endian<std::uint32_t>(rest + i) * kPrimes[0];
    hash = std::rotl(hash, 23) * kPrimes[1] + kPrimes[2];
    i += 4;
  }
  for (; i < size; ++i) hash = std::rotl(hash ^ rest[i] * kPrimes[4], 11) * kPrimes[0];
  return hash;
}

}  // namespace

void Fingerprint::add(std::uint64_t value) {
  for (int shift = 0; shift < 64; shift += 8) {
    state_ = (state_ ^ ((value >> shift) & 0xff)) * 0x100000001b3;
  }
}

void Fingerprint::add(std::string_view text) {
  add(text.size());
  for (const char c : text) state_ = (state_ ^ static_cast<unsigned char>(c)) * 0x100000001b3;
}

std::string Fingerprint::hex() const {
  return hex_text(state_);
}

ContentHash::ContentHash() : lanes_{kPrimes[0] + kPrimes[1], kPrimes[1], 0, 0 - kPrimes[0]} {}

void ContentHash::add(std::string_view bytes) {
  const auto* next = reinterpret_cast<const unsigned char*>(bytes.data());
  std::size_t left = bytes.size();
  length_ += left;
  if (rest_size_ > 0) {
    const std::size_t taken = std::min(left, rest_.size() - rest_size_);
    std::copy_n(next, taken, rest_.begin() + static_cast<std::ptrdiff_t>(rest_size_));
    rest_size_ += taken, next += taken, left -= taken;
    if (rest_size_ < rest_.size()) return;
    add_stripe(lanes_, rest_.data());
    rest_size_ = 0;
  }
  std::array<std::uint64_t, 4> lanes = lanes_;
  for (; left >= 32; next += 32, left -= 32) add_stripe(lanes, next);
  lanes_ = lanes;
  std::copy_n(next, left, rest_.begin());
  rest_size_ = left;
}

std::uint64_t ContentHash::value() const {
  std::uint64_t hash = kPrimes[4];
  if (length_ >= 32) {
    hash = std::rotl(lanes_[0], 1) + std::rotl(lanes_[1], 7) + std::rotl(lanes_[2], 12) +
           std::rotl(lanes_[3], 18);
    for (const std::uint64_t lane : lanes_) hash = (hash ^ round_of(0, lane)) * kPrimes[0] + kPrimes[3];
  }
  hash = add_rest(hash + length_, rest_.data(), rest_size_);
  hash = (hash ^ (hash >> 33)) * kPrimes[1];
  hash = (hash ^ (hash >> 29)) * kPrimes[2];
  return hash ^ (hash >> 32);
}

std::uint64_t content_hash(std::string_view bytes) {
  ContentHash hash;
  hash.add(bytes);
  return hash.value();
}

std::string hex_text(std::uint64_t value) {
  std::string text;
  for (int shift = 60; shift >= 0; shift -= 4) text += "0123456789abcdef"[(value >> shift) & 15];
  return text;
}

std::optional<std::uint64_t> parse_hex_text(std::string_view text) {
  if (text.size() != 16) return std::nullopt;
  std::uint64_t value = 0;
  for (const char c : text) {
    const std::size_t digit = std::string_view("0123456789abcdef").find(c);
    if (digit == std::string_view::npos) return std::nullopt;
    value = value << 4 | digit;
  }
  return value;
}

}  // namespace espalier
