#pragma once

// What the plans of a problem are judged with, made once and shared by all its planners: the price of a
// stage, the engine, the rules of drafts. Any number of threads may ask.

#include <memory>

#include "espalier/planners/draft.h"
#include "espalier/sim/evaluator.h"

namespace espalier {

class Oracle {
 public:
  // Refers to graph and cluster. Each part is made when somebody first asks for it.
  Oracle(const Graph& graph, const Cluster& cluster, const CostTable& costs, const Training& training);
  ~Oracle();

  const Evaluator& evaluator() const;
  const StagePrices& prices() const { return evaluator().prices(); }
  const DraftRules& rules() const;

  // Room for the evaluator, for one thread at a time, with the structures of plans that it met before; goes
  // back where the loan ends.
  using Scratch = std::unique_ptr<Evaluator::Scratch, void (*)(Evaluator::Scratch*)>;
  class Loan {
   public:
    explicit Loan(const Oracle& oracle) : oracle_(oracle), scratch_(oracle.take()) {}
    Loan(const Loan&) = delete;
    Loan& operator=(const Loan&) = delete;
    ~Loan() { oracle_.give(std::move(scratch_)); }
    Evaluator::Scratch& operator*() const { return *scratch_; }

   private:
    const Oracle& oracle_;
    Scratch scratch_;
  };

 private:
  Scratch take() const;
  void give(Scratch scratch) const;

  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace espalier
