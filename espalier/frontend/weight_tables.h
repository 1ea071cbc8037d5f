#pragma once

// The tables beside a .pt2 program's stored tensors: which entry of the archive holds which parameter, buffer
// or constant, and how. Internal to the frontend.

#include <string>
#include <unordered_map>
#include <vector>

#include "espalier/frontend/exported_program.h"

namespace espalier {

class WeightTables {
 public:
  // The stored form of a fully qualified name, its bytes checked to lie within its entry, or absent where
  // that is empty. `tensor` is not set. Throws InputError naming the file if it is unknown, pickled, or
  // larger than its entry.
  StoredTensor find(const std::string& name) const;

  // Whether two tensors have bytes in common; whether they are one tensor with two names.
  static bool share_bytes(const StoredTensor& a, const StoredTensor& b);
  static bool same_view(const StoredTensor& a, const StoredTensor& b);

 private:
  friend WeightTables read_weight_tables(const ZipReader& archive, const std::string& file,
                                         const std::string& model);

  struct Row {
    StoredTensor stored;
    bool pickled = false;
    bool missing = false;  // its entry is not in the archive
  };
  std::string file_;
  std::unordered_map<std::string, Row> rows_;
};

// `model` is the program's name within the archive, "model" as a rule.
WeightTables read_weight_tables(const ZipReader& archive, const std::string& file, const std::string& model);

}  // namespace espalier
