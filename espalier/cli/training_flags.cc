#include "espalier/cli/training_flags.h"

#include "espalier/base/check.h"

namespace espalier::cli {
namespace {

CLI::Validator at_least_zero() {
  const auto check = [](const std::string& text) -> std::string {
    double value = 0;
    if (CLI::detail::lexical_cast(text, value) && value >= 0) return "";
    return "'" + text + "' is not a number of at least 0";
  };
  return {check, ""};
}

CLI::Validator above_zero() {
  const auto check = [](const std::string& text) -> std::string {
    double value = 0;
    if (CLI::detail::lexical_cast(text, value) && value > 0) return "";
    return "'" + text + "' is not a number above 0";
  };
  return {check, ""};
}

}  // namespace

void TrainingFlags::add_optimizer(CLI::App* verb) {
  verb->add_option("--optimizer", kind_, "adam, adamw or sgd; default: adam")->type_name("NAME");
  verb->add_option("--momentum", momentum_, "of sgd")->type_name("X")->check(at_least_zero());
  verb->add_option("--weight-decay", weight_decay_, "of all three")->type_name("X")->check(at_least_zero());
  verb->add_option("--no-decay", no_decay_, "parameters without it, such as '*.bias'; repeatable")
      ->type_name("PATTERN")
      ->allow_extra_args(false);
}

void TrainingFlags::add_rate(CLI::App* verb) {
  verb->add_option("--lr", learning_rate_, "learning rate; default: 0.001")
      ->type_name("X")
      ->check(at_least_zero());
  verb->add_option("--lr-schedule", shape_, "constant, linear or cosine; default: constant")
      ->type_name("NAME");
  verb->add_option("--warm-up", warm_up_, "steps over which the rate rises from 0")->type_name("N");
  verb->add_option("--schedule-steps", schedule_steps_,
                   "steps until the rate is 0; default: those of the run")
      ->type_name("N");
  verb->add_option("--clip-norm", clip_norm_, "gradients are scaled down to this norm")
      ->type_name("X")
      ->check(above_zero());
}

void TrainingFlags::add_frozen(CLI::App* verb) {
  verb->add_option("--freeze", frozen_, "parameters that are not trained, such as 'encoder.*'; repeatable")
      ->type_name("PATTERN")
      ->allow_extra_args(false);
}

Optimizer TrainingFlags::over(Optimizer before) const {
  Optimizer optimizer = std::move(before);
  if (kind_) {
    const auto kind = parse_optimizer(*kind_);
    if (!kind) throw InputError("--optimizer " + *kind_ + ": expected adam, adamw or sgd");
    optimizer.kind = *kind;
  }
  if (shape_) {
    const auto shape = parse_schedule_shape(*shape_);
    if (!shape) throw InputError("--lr-schedule " + *shape_ + ": expected constant, linear or cosine");
    optimizer.schedule.shape = *shape;
  }
  optimizer.learning_rate = learning_rate_.value_or(optimizer.learning_rate);
  optimizer.momentum = momentum_.value_or(optimizer.momentum);
  optimizer.weight_decay = weight_decay_.value_or(optimizer.weight_decay);
  optimizer.schedule.warm_up = warm_up_.value_or(optimizer.schedule.warm_up);
  optimizer.schedule.steps = schedule_steps_.value_or(optimizer.schedule.steps);
  if (clip_norm_) optimizer.clip_norm = clip_norm_;
  if (!no_decay_.empty()) optimizer.no_decay = no_decay_;
  if (schedule_steps_ && optimizer.schedule.warm_up > *schedule_steps_) {
    throw InputError("--warm-up " + std::to_string(optimizer.schedule.warm_up) + ": is longer than the " +
                     std::to_string(*schedule_steps_) + " steps of the schedule");
  }
  return optimizer;
}

}  // namespace espalier::cli
