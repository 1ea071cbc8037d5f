#pragma once

// Whole files in, whole files out. Writing is atomic: a reader sees the old file or the new one, never a torn
// one.

#include <cstdint>
#include <string>
#include <string_view>

namespace espalier {

// Throws InputError naming the path and the reason (missing, a folder, not readable, larger than `limit`).
std::string read_file(const std::string& path, std::uint64_t limit = std::uint64_t{4} << 30);

// Writes a temporary file beside `path`, flushes it to disk and renames it. Throws InputError naming path and
// reason (no such folder, disk full, …); then the old file is as it was and no temporary file is left.
void write_file_atomically(const std::string& path, std::string_view content);

}  // namespace espalier
