// Enumerations that Python reads: exported here, so that no Python file repeats their numbers.
#include <nanobind/nanobind.h>

#include "codecs/frame.hpp"
#include "control.hpp"
#include "embedding_rows.hpp"
#include "embedding_update.hpp"
#include "failure_monitor.hpp"
#include "pooling.hpp"
#include "program.hpp"

namespace nb = nanobind;

void bind_enums(nb::module_& module) {
  using weft::FaultReason;
  nb::enum_<FaultReason>(module, "FaultReason", nb::is_arithmetic(), "Why a world broke.")
      .value("RAISED", FaultReason::raised)
      .value("TIMEOUT", FaultReason::timeout)
      .value("DIED", FaultReason::died)
      .value("DISAGREE", FaultReason::disagree);

  using weft::AbortCause;
  nb::enum_<AbortCause>(module, "AbortCause", nb::is_arithmetic(), "Why a rank stopped waiting.")
      .value("FAULT", AbortCause::fault)
      .value("STOPPED", AbortCause::stopped)
      .value("TIMEOUT", AbortCause::timeout)
      .value("DIED", AbortCause::died)
      .value("LEFT", AbortCause::left)
      .value("SLOT", AbortCause::slot)
      .value("MEMORY", AbortCause::memory)
      .value("SIZE", AbortCause::size)
      .value("DISAGREE", AbortCause::disagree)
      .value("CODEC", AbortCause::codec)
      .value("THREADS", AbortCause::threads);

  using weft::Verdict;
  nb::enum_<Verdict>(module, "FrameStatus", nb::is_arithmetic(), "What is wrong with a frame.")
      .value("GOOD", Verdict::good)
      .value("CUT", Verdict::cut)
      .value("VERSION", Verdict::version)
      .value("CODEC", Verdict::codec)
      .value("SIZE", Verdict::size)
      .value("CHECKSUM", Verdict::checksum)
      .value("CONTENT", Verdict::content)
      .value("BASE", Verdict::base);
  module.def("frame_status_reason", &weft::reason_of, nb::arg("status"), "What a verdict means, as text.");

  // weft.schedule.Kind has the same numbers: the schedule package does not need the native core,
  // so a test compares the two.
  using weft::Kind;
  nb::enum_<Kind>(module, "CommandKind", nb::is_arithmetic(), "The kinds of commands of a schedule.")
      .value("KERNEL", Kind::kernel)
      .value("LAUNCH", Kind::launch)
      .value("COPY", Kind::copy)
      .value("BROADCAST", Kind::broadcast)
      .value("SWAP", Kind::swap)
      .value("REDUCE", Kind::reduce)
      .value("ENCODE", Kind::encode)
      .value("DECODE", Kind::decode)
      .value("SIGNAL", Kind::signal)
      .value("WAIT", Kind::wait)
      .value("SUBMIT", Kind::submit)
      .value("CALL", Kind::call);

  using PoolingTask = weft::PoolingTask::Kind;
  nb::enum_<PoolingTask>(module, "PoolingTask", nb::is_arithmetic(), "What a kernel of an embedding does.")
      .value("POOL", PoolingTask::pool)
      .value("DELIVER", PoolingTask::deliver)
      .value("UPDATE", PoolingTask::update);

  using weft::Element;
  nb::enum_<Element>(module, "TableElement", nb::is_arithmetic(), "The element type of an embedding table.")
      .value("FLOAT32", Element::float32)
      .value("BFLOAT16", Element::bfloat16)
      .value("FLOAT16", Element::float16)
      .value("QUANTIZED", Element::int8);

  using weft::Rule;
  nb::enum_<Rule>(module, "RowUpdate", nb::is_arithmetic(),
                  "What the backward pass does with a row's gradient.")
      .value("SGD", Rule::sgd)
      .value("ROWWISE_ADAGRAD", Rule::rowwise_adagrad);
}
