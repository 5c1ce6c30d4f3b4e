#include "common/args/field.h"

#include "common/args/enum_names.h"
#include "common/args/options.h"
#include "common/args/render.h"
#include "common/args/spec.h"
#include "common/args/text.h"

#include <nlohmann/json.hpp>

#include <array>
#include <charconv>
#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace tandem::args {
namespace {

bool in_list(std::string_view list, std::string_view word) {
  for (std::string_view each : split_list(list)) {
    if (each == word) return true;
  }
  return false;
}

template <class E>
std::string usable_choices(const Spec& spec) {
  std::string text;
  for (std::string_view choice : split_list(spec.choices)) {
    for (const auto& [name, value] : Names<E>::kList) {
      if (name == choice) text += (text.empty() ? "" : ", ") + std::string(choice);
    }
  }
  return text;
}

Status bad_choice(std::string_view word, const Spec& spec) {
  if (spec.name == "log-level") {
    return invalid_argument("unknown level " + shown(word) +
                            "; known: " + joined(spec.choices, ", "));
  }
  if (spec.name == "torchao-config") {
    return invalid_argument("unknown recipe " + shown(word) +
                            "; known: " + joined(spec.choices, ", "));
  }
  std::string text = "invalid choice: '" + shown(word) + "' (choose from ";
  bool first = true;
  for (std::string_view choice : split_list(spec.choices)) {
    text += (first ? "'" : ", '") + std::string(choice) + "'";
    first = false;
  }
  return invalid_argument(text + ")");
}

/// A choice that the schema knows and this build cannot do: says what it waits for, and what to
/// take instead.
template <class E>
Status refused_choice(std::string_view word, const Spec& spec) {
  const std::string usable = usable_choices<E>(spec);
  const std::string quoted(word);
  if (in_list(spec.needs_cuda, word)) {
    return failed_precondition(
        quoted + " needs a CUDA device, which is not available on this machine or in this " +
        "build; available here: " + usable);
  }
  if (in_list(spec.needs_rdma, word)) {
    return failed_precondition(
        quoted + " needs an RDMA device, which is not available on this machine or in this " +
        "build; available here: " + usable);
  }
  if (in_list(spec.needs_vendor, word)) {
    return failed_precondition(
        quoted + " needs another vendor's hardware, which is not part of this build; " +
        "available here: " + usable);
  }
  if (spec.name == "load-balance-method") {
    return unimplemented(
        quoted + " needs --enable-dp-attention, which is not built yet; available here: " + usable);
  }
  return unimplemented(quoted + " is known, but not built yet; available here: " + usable);
}

template <class E>
Status set_enum(E& field, const std::string& raw, const Spec& spec) {
  std::string word = spec.ignore_case ? lower(raw) : raw;
  for (const auto& [name, value] : Names<E>::kList) {
    if (name == word) {
      field = value;
      return {};
    }
  }
  if (!in_list(spec.choices, word)) return bad_choice(raw, spec);
  const bool hardware = in_list(spec.needs_cuda, word) || in_list(spec.needs_vendor, word);
  if (hardware && !spec.falls_back_to.empty())
    return set_enum(field, std::string(spec.falls_back_to), spec);
  return refused_choice<E>(word, spec);
}

/// What the type of a field holds. Numbers are read as int64, so no field takes more.
template <class T>
constexpr Bounds bounds_of() {
  if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
    constexpr auto kMost = std::numeric_limits<std::int64_t>::max();
    using Limits = std::numeric_limits<T>;
    return {static_cast<std::int64_t>(Limits::min()),
            std::in_range<std::int64_t>(Limits::max()) ? static_cast<std::int64_t>(Limits::max())
                                                       : kMost};
  } else {
    return {};
  }
}

template <class T>
Status set_number(T& field, const std::string& word, const Spec& spec) {
  constexpr bool kFloat = std::is_floating_point_v<T>;
  const Result<Number> parsed = kFloat ? parse_float(word) : parse_integer(word, spec.unit);
  if (!parsed.ok()) {
    return invalid_argument(std::string(parsed.status().message()) + " (expected " +
                            number_words(spec, kFloat) + ")");
  }
  const Number& number = parsed.value();
  TANDEM_TRY(check_range(number, word, spec));
  if constexpr (kFloat) {
    field = number.real;
  } else {
    // Fields without a bound of their own in the schema are bounded by their type.
    if (!std::in_range<T>(number.integer) || number.overflow) {
      const Bounds bounds = bounds_of<T>();
      return invalid_argument(shown(word) + " is out of range, expected " +
                              (number.real < 0 ? ">= " + std::to_string(bounds.least)
                                               : "<= " + std::to_string(bounds.most)));
    }
    field = static_cast<T>(number.integer);
  }
  return {};
}

Status set_url(std::string& field, const std::string& word) {
  TANDEM_TRY(check_url(word));
  field = word;
  return {};
}

template <class T>
Status set_one(T& field, const std::string& word, const Spec& spec) {
  if constexpr (std::is_enum_v<T>) {
    return set_enum(field, word, spec);
  } else if constexpr (std::is_same_v<T, bool>) {
    std::string text = lower(word);
    if (spec.type == "bool") {
      if (in_list("1,yes,on,t", text)) text = "true";
      if (in_list("0,no,off,f", text)) text = "false";
    }
    if (text != "true" && text != "false")
      return invalid_argument("expected true or false, got '" + shown(word) + "'");
    field = text == "true";
    return {};
  } else if constexpr (std::is_same_v<T, std::string>) {
    if (spec.type == "json") {
      TANDEM_TRY(field, read_json_object(word));
      return {};
    }
    TANDEM_TRY(check_form(word, spec.form));
    field = word;
    return {};
  } else {
    return set_number(field, word, spec);
  }
}

template <class T>
std::string json_one(const T& value) {
  if constexpr (std::is_enum_v<T>) {
    return json_string(enum_text(value));
  } else if constexpr (std::is_same_v<T, bool>) {
    return value ? "true" : "false";
  } else if constexpr (std::is_same_v<T, std::string>) {
    return json_string(value);
  } else if constexpr (std::is_floating_point_v<T>) {
    const std::string text = number_text(value);
    return text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
  } else {
    return std::to_string(value);
  }
}

template <class T>
constexpr std::string_view type_of() {
  if constexpr (std::is_enum_v<T>) {
    return "enum";
  } else if constexpr (std::is_same_v<T, bool>) {
    return "bool-flag";
  } else if constexpr (std::is_same_v<T, std::string>) {
    return "string";
  } else if constexpr (std::is_floating_point_v<T>) {
    return "float";
  } else {
    return "int";
  }
}

/// How a field of each shape is read and written; plain values first, then optional and lists.
template <class T>
struct Shape {
  static constexpr std::string_view kType = type_of<T>();

  static Status set(T& field, std::span<const Words> occurrences, const Spec& spec) {
    const Words& words = occurrences.back();
    return set_one(field, words.empty() ? "true" : words.front(), spec);
  }

  static std::string json(const T& field) { return json_one(field); }
};

template <class T>
struct Shape<std::optional<T>> {
  static constexpr std::string_view kType = type_of<T>();

  static Status set(std::optional<T>& field, std::span<const Words> occurrences, const Spec& spec) {
    T value{};
    const Words& words = occurrences.back();
    TANDEM_TRY(set_one(value, words.empty() ? "true" : words.front(), spec));
    field = std::move(value);
    return {};
  }

  static std::string json(const std::optional<T>& field) {
    return field ? json_one(*field) : "null";
  }
};

/// Parses each address; every bad one is told, in one sentence.
class Addresses {
 public:
  void take(std::string& field, const std::string& word) { tell(set_url(field, word)); }

  void tell(const Status& status) {
    if (status.ok()) return;
    if (++count_ <= kTold) wrong_ += (wrong_.empty() ? "" : "; ") + std::string(status.message());
  }

  [[nodiscard]] Status status() const {
    if (count_ == 0) return {};
    if (count_ <= kTold) return invalid_argument(wrong_);
    return invalid_argument(wrong_ + "; and " + std::to_string(count_ - kTold) + " more");
  }

 private:
  static constexpr std::size_t kTold = 8;

  std::size_t count_ = 0;
  std::string wrong_;
};

/// The only lists are of worker addresses.
template <>
struct Shape<std::vector<std::string>> {
  static constexpr std::string_view kType = "list<string>";

  static Status set(std::vector<std::string>& field,
                    std::span<const Words> occurrences,
                    const Spec& /*spec*/) {
    std::vector<std::string> urls;
    Addresses addresses;
    for (const Words& words : occurrences) {
      for (const std::string& word : words)
        addresses.take(urls.emplace_back(), word);
    }
    TANDEM_TRY(addresses.status());
    field = std::move(urls);
    return {};
  }

  static std::string json(const std::vector<std::string>& field) {
    std::string text = "[";
    for (const std::string& each : field)
      text += (text.size() > 1 ? ", " : "") + json_string(each);
    return text + "]";
  }
};

template <>
struct Shape<std::vector<PrefillUrl>> {
  static constexpr std::string_view kType = "list<string>";

  static Status set(std::vector<PrefillUrl>& field,
                    std::span<const Words> occurrences,
                    const Spec& /*spec*/) {
    std::vector<PrefillUrl> urls;
    Addresses addresses;
    for (const Words& words : occurrences) {
      PrefillUrl& each = urls.emplace_back();
      addresses.take(each.url, words.front());
      each.no_bootstrap = words.size() > 1 && lower(words[1]) == "none";
      if (words.size() < 2 || each.no_bootstrap) continue;
      Spec port;
      port.range = {.min = 1, .max = 65535};
      std::uint16_t value = 0;
      const Status status = set_number(value, words[1], port);
      if (status.ok()) {
        each.bootstrap_port = value;
      } else {
        addresses.tell(status.with_context("bootstrap port of " + shown(words.front())));
      }
    }
    TANDEM_TRY(addresses.status());
    field = std::move(urls);
    return {};
  }

  static std::string json(const std::vector<PrefillUrl>& field) {
    std::string text = "[";
    for (const PrefillUrl& each : field) {
      const std::string port = each.bootstrap_port ? std::to_string(*each.bootstrap_port) : "null";
      text += (text.size() > 1 ? ", [" : "[") + json_string(each.url) + ", " + port + "]";
    }
    return text + "]";
  }
};

/// What an optional holds.
template <class T>
struct Value {
  using Type = T;
};

template <class T>
struct Value<std::optional<T>> {
  using Type = T;
};

template <class T>
Status set_erased(void* field, std::span<const Words> occurrences, const Spec& spec) {
  return Shape<T>::set(*static_cast<T*>(field), occurrences, spec);
}

template <class T>
std::string usable_erased(const Spec& spec) {
  if constexpr (std::is_enum_v<T>) return usable_choices<T>(spec);
  if constexpr (std::is_same_v<T, std::optional<Quantization>> ||
                std::is_same_v<T, std::optional<ElasticEpBackend>>) {
    return usable_choices<typename T::value_type>(spec);
  }
  return joined(spec.choices, ", ");
}

template <class T>
std::string names_erased() {
  std::string text;
  if constexpr (std::is_enum_v<T>) {
    for (const auto& [name, value] : Names<T>::kList)
      text += (text.empty() ? "" : ",") + std::string(name);
  }
  return text;
}

template <class T>
std::string json_erased(const void* field) {
  return Shape<T>::json(*static_cast<const T*>(field));
}

}  // namespace

template <class T>
const FieldOps& field_ops() {
  static constexpr FieldOps kOps = {Shape<T>::kType,
                                    &set_erased<T>,
                                    &usable_erased<T>,
                                    &names_erased<T>,
                                    &json_erased<T>,
                                    bounds_of<typename Value<T>::Type>()};
  return kOps;
}

template const FieldOps& field_ops<bool>();
template const FieldOps& field_ops<double>();
template const FieldOps& field_ops<std::uint16_t>();
template const FieldOps& field_ops<std::uint32_t>();
template const FieldOps& field_ops<std::uint64_t>();
template const FieldOps& field_ops<std::int32_t>();
template const FieldOps& field_ops<std::int64_t>();
template const FieldOps& field_ops<std::string>();
template const FieldOps& field_ops<std::optional<std::uint16_t>>();
template const FieldOps& field_ops<std::optional<std::uint32_t>>();
template const FieldOps& field_ops<std::optional<std::uint64_t>>();
template const FieldOps& field_ops<std::optional<std::string>>();
template const FieldOps& field_ops<std::vector<std::string>>();
template const FieldOps& field_ops<std::vector<PrefillUrl>>();
template const FieldOps& field_ops<std::optional<bool>>();
template const FieldOps& field_ops<std::optional<Quantization>>();
template const FieldOps& field_ops<std::optional<ElasticEpBackend>>();

#define TANDEM_ARGS_FIELD_OPS(Type) template const FieldOps& field_ops<Type>();
TANDEM_ARGS_ENUMS(TANDEM_ARGS_FIELD_OPS)
#undef TANDEM_ARGS_FIELD_OPS

}  // namespace tandem::args
