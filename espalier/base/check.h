#pragma once

// The two ways to fail. InputError: the user's data is wrong; the text says where, what, and what would be
// right, on one line; caught in main, at the Python boundary and in fuzz targets only. ESP_CHECK: this
// program is wrong; throws InternalError, which nobody catches to carry on (main reports it and exits 70).

#include <sstream>
#include <stdexcept>
#include <string>

namespace espalier {

class InputError : public std::runtime_error {
 public:
  // Control characters become spaces: a message may quote any bytes and stays on one line.
  explicit InputError(std::string text);
};

class InternalError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

namespace internal {

[[noreturn]] void check_failed(const char* file, int line, const char* expression, const char* names,
                               const std::string& values);

template <class T>
void print_value(std::ostream& out, const T& value) {
  if constexpr (requires { out << value; }) {
    out << value;
  } else if constexpr (requires { value.count(); }) {
    out << value.count();
  } else {
    out << value.index();
  }
}

template <class... Values>
std::string print_values(const Values&... values) {
  std::ostringstream out;
  [[maybe_unused]] const char* separator = "";  // without values
  ((out << separator, print_value(out, values), separator = ", "), ...);
  return out.str();
}

}  // namespace internal
}  // namespace espalier

// ESP_CHECK(stages <= devices, stages, devices): expression and values are in the message.
#define ESP_CHECK(expression, ...)                                                         \
  do {                                                                                     \
    if (!(expression)) [[unlikely]] {                                                      \
      ::espalier::internal::check_failed(__FILE__, __LINE__, #expression, #__VA_ARGS__,    \
                                         ::espalier::internal::print_values(__VA_ARGS__)); \
    }                                                                                      \
  } while (false)
