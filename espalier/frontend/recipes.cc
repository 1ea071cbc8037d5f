#include "espalier/frontend/recipes.h"

#include <algorithm>

#include "espalier/base/check.h"
#include "espalier/frontend/onnx_file.h"

namespace espalier {
namespace {

const char* const kExport =
    "export the model with torch 2.8 or newer: from espalier_export import export; "
    "export(model, example_inputs, \"model.pt2\", loss=\"cross_entropy\", targets={\"labels\": labels})";

}  // namespace

std::string no_loss_recipe() {
  return "has no loss: no output is one floating-point number; put it into the program: " +
         std::string(
             "from espalier_export import export; export(model, inputs, \"model.pt2\", "
             "loss=\"cross_entropy\", "
             "targets={\"labels\": labels})");
}

void refuse_what_is_only_planned(std::string_view bytes, const std::string& name) {
  if (is_onnx(bytes))
    throw InputError(name + ": is ONNX, which is planned and not executed; take the PyTorch model and " +
                     kExport);
}

void refuse_other_archives(const ZipReader& archive, const std::string& name) {
  if (archive.contains("archive_format")) return;
  const auto folder = [&](std::string_view prefix) {
    return std::any_of(archive.entries().begin(), archive.entries().end(),
                       [&](const ZipReader::Entry& entry) { return entry.name.starts_with(prefix); });
  };
  if (archive.contains("serialized_exported_program.json")) {
    throw InputError(
        name + ": is an exported program in the form of torch 2.7 and older; load it there and " + kExport);
  }
  if (archive.contains("constants.pkl") || folder("code/")) {
    throw InputError(name + ": is TorchScript, which holds code and not a graph; take the Python model and " +
                     kExport);
  }
  if (archive.contains("data.pkl")) {
    throw InputError(name +
                     ": is a pickle of weights or of a whole model, which has no graph; build the model in " +
                     "Python, load it there and " + kExport);
  }
  throw InputError(name + ": is a zip archive and no exported program; " + kExport);
}

void refuse_other_files(std::string_view bytes, const std::string& name) {
  if (bytes.size() < 9) return;
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(bytes[i]); };
  // A pickle of protocol 2 and up begins 0x80, protocol.
  if (byte(0) == 0x80 && byte(1) >= 2 && byte(1) <= 5) {
    throw InputError(name + ": is a Python pickle, which is never loaded here; load it in Python and " +
                     kExport);
  }
  // safetensors: the header's length in eight bytes, then the header's JSON.
  if (byte(8) == '{' && byte(4) == 0 && byte(5) == 0 && byte(6) == 0 && byte(7) == 0) {
    throw InputError(name +
                     ": holds weights and no graph (safetensors); build the model in Python, load them and " +
                     kExport);
  }
}

}  // namespace espalier
