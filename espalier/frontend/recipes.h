#pragma once

// Files of other kinds, and what their owner can do. Internal to the frontend.

#include <optional>
#include <string>
#include <string_view>

#include "espalier/frontend/zip.h"

namespace espalier {

// How to get a program with a loss.
std::string no_loss_recipe();

// For those who execute: throws InputError, with the recipe, for a model that is only planned (ONNX).
void refuse_what_is_only_planned(std::string_view bytes, const std::string& name);

// Throws InputError with the recipe if the archive is an old .pt2, TorchScript or a pickled state dict.
void refuse_other_archives(const ZipReader& archive, const std::string& name);

// The same for files that are no zip: safetensors, bare pickles. Returns if it is none of these.
void refuse_other_files(std::string_view bytes, const std::string& name);

}  // namespace espalier
