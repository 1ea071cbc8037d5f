#pragma once

// A trace as text: one row per device, time to the right.
//
//           0         5         10        15        20        25 ms
//   dev0    F0░░F1░░········B0▓▓▓▓▓▓F2░░B1▓▓▓▓▓▓F3░░B2▓▓▓▓▓▓B3▓▓▓▓▓▓  92.3 % busy
//   dev2    ·····F0B0▓▓F1B1▓▓············F2B2▓▓········F3B3▓▓········  46.2 % busy
//
// An action is its letter and micro-batch as far as they fit, then its fill: forward ░, backward ▓, so both
// can be told without colour. '·' is idle. Sums of gradients (A≡≡≡) go on beside what the device does: they
// show where it is idle meanwhile. In colour, each stage has its hue: forward light, backward dark.
//
// Of more than 32 devices those are shown that device_selection.h chooses, and a line says how many more
// there are and how far their figures lie.

#include <string>

#include "espalier/trace/trace.h"

namespace espalier {

enum class Colour : std::uint8_t { kNever, kAnsi };  // 256-colour escapes

struct GanttOptions {
  int width = 100;  // columns of the terminal, at least 40
  Colour colour = Colour::kNever;
  bool transfers = false;  // a row below each device that sends: one mark per transfer
  bool memory = false;     // a row below each device: memory held, eighths of its own peak
};

// Devices without an action are left out, unless nobody has one. Ends with a legend of what occurs.
std::string text_gantt(const Trace& trace, const GanttOptions& options = {});

// "Does it fit?" One bar per device at its peak, split by category, against its capacity:
//
//   gpu:0  PPPPGGGGOOOOOOOOAAAAAAAAAAB···················  10.1 GiB of 16.0 GiB  63 %
std::string memory_bars(const Trace& trace, const GanttOptions& options = {});

}  // namespace espalier
