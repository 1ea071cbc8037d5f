#pragma once

// Words of streams, span kinds and action letters, as the trace's written forms use them.

#include <array>
#include <optional>
#include <string_view>

#include "espalier/trace/trace.h"

namespace espalier {

inline constexpr std::array<std::string_view, 4> kStreamNames{"compute", "send", "receive", "collective"};
inline constexpr std::array<std::string_view, 6> kSpanKindNames{
    "action", "transfer", "wait", "send_endpoint", "receive_endpoint", "collective"};
inline constexpr std::string_view kActionLetters = "FBIWRATU";

inline std::string_view to_text(Stream stream) {
  return kStreamNames[static_cast<std::size_t>(stream)];
}
inline std::string_view to_text(SpanKind kind) {
  return kSpanKindNames[static_cast<std::size_t>(kind)];
}

template <class Enum, std::size_t N>
std::optional<Enum> named(const std::array<std::string_view, N>& names, std::string_view text) {
  for (std::size_t i = 0; i < N; ++i) {
    if (names[i] == text) return static_cast<Enum>(i);
  }
  return std::nullopt;
}
inline std::optional<Stream> parse_stream(std::string_view text) {
  return named<Stream>(kStreamNames, text);
}
inline std::optional<SpanKind> parse_span_kind(std::string_view text) {
  return named<SpanKind>(kSpanKindNames, text);
}
inline std::optional<ActionKind> action_kind(char letter) {
  const std::size_t kind = kActionLetters.find(letter);
  if (kind == std::string_view::npos) return std::nullopt;
  return static_cast<ActionKind>(kind);
}

// The kind that needs no word: written forms name the others.
inline SpanKind usual_kind(Stream stream) {
  constexpr std::array<SpanKind, 4> kUsual{SpanKind::kAction, SpanKind::kTransfer, SpanKind::kReceiveWait,
                                           SpanKind::kCollective};
  return kUsual[static_cast<std::size_t>(stream)];
}

}  // namespace espalier
