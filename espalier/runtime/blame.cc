#include "espalier/runtime/blame.h"

#include <c10/util/Exception.h>

#include <charconv>
#include <memory>
#include <new>
#include <string_view>

#include "espalier/base/check.h"
#include "espalier/base/units.h"
#include "espalier/runtime/runtime.h"

namespace espalier {
namespace {

std::string message_of(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  return torch_error != nullptr ? torch_error->what_without_backtrace() : error.what();
}

bool has(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

// "you tried to allocate 4000 bytes" of the processor's allocator, "Tried to allocate 2.00 GiB" of a GPU's.
std::string needed(const std::string& message) {
  constexpr std::string_view kAsked = "ried to allocate ";
  const std::size_t found = message.find(kAsked);
  if (found == std::string::npos) return "";
  const std::string_view rest = std::string_view(message).substr(found + kAsked.size());
  std::int64_t bytes = 0;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), bytes);
  if (error == std::errc() && std::string_view(end, rest.data() + rest.size()).starts_with(" bytes")) {
    return ", it needs " + to_text(Bytes(bytes)) + " more";
  }
  return ", it needs " + std::string(rest.substr(0, rest.find_first_of(".", rest.find(' ')))) + " more";
}

thread_local std::optional<std::uint64_t> begun;  // the sequence number of the node begun last

std::unique_ptr<at::ObserverContext> node_begins(const at::RecordFunction& node) {
  begun = static_cast<std::uint64_t>(node.seqNr());
  return nullptr;
}

}  // namespace

Blame blame_of(const std::exception& error) {
  const auto is = [&]<class T>(const T*) { return dynamic_cast<const T*>(&error) != nullptr; };
  if (is(static_cast<std::bad_alloc*>(nullptr)) || is(static_cast<c10::OutOfMemoryError*>(nullptr))) {
    return Blame::kMemory;
  }
  if (!is(static_cast<c10::Error*>(nullptr))) return Blame::kProgram;
  const std::string message = message_of(error);
  if (has(message, "can't allocate memory") || has(message, "out of memory")) return Blame::kMemory;
  return has(message, "INTERNAL ASSERT FAILED") ? Blame::kProgram : Blame::kInput;
}

void throw_if_out_of_memory(const std::string& where, const std::exception& error) {
  if (blame_of(error) != Blame::kMemory) return;
  throw ResourceError(where + ": there is not enough memory" + needed(message_of(error)) +
                      "; smaller micro-batches or recomputation need less");
}

void throw_blamed(const std::string& where, const std::exception& error) {
  throw_if_out_of_memory(where, error);
  const std::string message = message_of(error);
  const std::string text = where + ": " + message.substr(0, message.find('\n'));
  if (blame_of(error) == Blame::kInput) throw InputError(text);
  throw InternalError(text);
}

BackwardWatch::BackwardWatch()
    : handle_(at::addThreadLocalCallback(
          at::RecordFunctionCallback(node_begins).scopes({at::RecordScope::BACKWARD_FUNCTION}))) {
  begun.reset();
}

BackwardWatch::~BackwardWatch() {
  at::removeCallback(handle_);
}

std::optional<std::uint64_t> BackwardWatch::last_node() const {
  return begun;
}

}  // namespace espalier
