#include "common/args/enum_names.h"

#include "common/args/args.h"

namespace tandem::args {

std::string_view to_string(DisaggregationMode value) {
  return enum_text(value);
}

std::string_view to_string(DType value) {
  return enum_text(value);
}

std::string_view to_string(KernelFamily value) {
  return enum_text(value);
}

std::string_view to_string(LogLevel value) {
  return enum_text(value);
}

std::string_view to_string(SchedulePolicy value) {
  return enum_text(value);
}

std::string_view to_string(RoutingPolicy value) {
  return enum_text(value);
}

std::string_view to_string(AttentionBackend value) {
  return enum_text(value);
}

std::string_view to_string(TransferBackend value) {
  return enum_text(value);
}

std::string_view to_string(LoadFormat value) {
  return enum_text(value);
}

}  // namespace tandem::args
