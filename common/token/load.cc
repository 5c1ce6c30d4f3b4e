// Reads tokenizer.json into a Tokenizer.
#include "common/json/field.h"
#include "common/json/parse.h"
#include "common/token/tokenizer.h"

#include <fmt/format.h>

#include <array>
#include <utility>

namespace tandem::token {
namespace {

constexpr std::size_t kFileBytesMax = std::size_t{256} << 20;
constexpr std::size_t kAddedTokensMax = 1 << 18;
/// Tokens whose places in the vocabulary are asked for at a time.
constexpr std::size_t kAhead = 16;

const json::Value& null_value() {
  static const json::Value kNull;
  return kNull;
}

/// A member that may be missing: then a null with the right path.
json::Field member_or_null(const json::Field& root, std::string_view key) {
  if (auto field = root.find(key)) return *field;
  return json::Field(null_value(), std::string(key));
}

Status refuse_affix(const json::Field& model, std::string_view key) {
  TANDEM_TRY(const auto text, model.optional_string(key));
  if (text && !text->empty()) return model.at(key)->mismatch("null (not supported otherwise)");
  return {};
}

Result<Vocabulary> load_vocabulary(const json::Field& model) {
  TANDEM_TRY(const json::Field vocab_field, model.at("vocab"));
  TANDEM_TRY(const json::Object* vocab, vocab_field.as_object());
  Vocabulary vocabulary;
  vocabulary.reserve(std::min(vocab->size(), std::size_t{kMaxTokenIds}));
  // Places of tokens lie all over the vocabulary's table: some are asked for at a time.
  std::array<Vocabulary::Key, kAhead> keys;
  for (std::size_t i = 0; i < vocab->size() + kAhead; ++i) {
    Vocabulary::Key& key = keys[i % kAhead];
    if (i >= kAhead) {
      const json::Value& id = vocab->begin()[i - kAhead].value;
      if (id.if_int() == nullptr) {
        return vocab_field.error(fmt::format(
            "token \"{}\": expected an integer id, found {}", key.text, json::describe(id)));
      }
      const Status added = vocabulary.add(key, *id.if_int());
      if (!added.ok()) return added.with_context(vocab_field.path());
    }
    if (i >= vocab->size()) continue;
    key = Vocabulary::key(vocab->begin()[i].key);
    vocabulary.prefetch(key);
  }
  return vocabulary;
}

/// "a b" or ["a", "b"]; two empty ones for anything else.
std::pair<std::string_view, std::string_view> read_merge(const json::Value& merge) {
  const auto* pair = merge.if_array();
  if (pair != nullptr && pair->size() == 2 && (*pair)[0].is_string() && (*pair)[1].is_string())
    return {*(*pair)[0].if_string(), *(*pair)[1].if_string()};
  const auto* text = merge.if_string();
  const std::size_t blank = text != nullptr ? text->find(' ') : std::string::npos;
  if (blank == std::string::npos || text->find(' ', blank + 1) != std::string::npos) return {};
  const std::string_view all = *text;
  return {all.substr(0, blank), all.substr(blank + 1)};
}

}  // namespace

class Loader {
 public:
  Result<std::shared_ptr<const Tokenizer>> run(const json::Value& root, TokenizerConfig config) {
    const json::Field field(root);
    TANDEM_TRY(field.as_object());
    t_.config_ = std::move(config);
    TANDEM_TRY(load_model(field));
    TANDEM_TRY(t_.normalizer_, Normalizer::load(member_or_null(field, "normalizer")));
    TANDEM_TRY(t_.pre_tokenizer_, PreTokenizer::load(member_or_null(field, "pre_tokenizer")));
    TANDEM_TRY(t_.decoder_, Decoder::load(member_or_null(field, "decoder")));
    TANDEM_TRY(load_added_tokens(field));
    TANDEM_TRY(add_config_tokens());
    build_matchers();
    TANDEM_TRY(load_post_processor(member_or_null(field, "post_processor"), 0));
    apply_roles();
    t_.index_tokens();
    return std::shared_ptr<const Tokenizer>(new Tokenizer(std::move(t_)));
  }

 private:
  Status load_model(const json::Field& root);
  Status load_merges(const json::Field& model);
  Status load_added_tokens(const json::Field& root);
  Status add_token(AddedToken token, std::string_view where);
  Status add_config_tokens();
  void build_matchers();
  Status load_post_processor(const json::Field& field, int depth);
  Status load_template(const json::Field& field);
  Status load_cls_sep(const json::Field& field);
  Result<std::vector<std::int32_t>> template_ids(const json::Field& field,
                                                 const json::Field& table);
  Result<std::int32_t> known_id(const json::Field& field);
  void apply_roles();

  Tokenizer t_;
};

Status Loader::load_model(const json::Field& root) {
  TANDEM_TRY(const json::Field model, root.at("model"));
  TANDEM_TRY(const auto type, model.optional_string("type"));
  // Files of old versions leave the type out; merges tell a BPE model.
  if (type && *type != "BPE") return model.at("type")->mismatch("\"BPE\"");
  if (!type && !model.find("merges")) return model.error("expected a BPE model with merges");
  TANDEM_TRY(const auto dropout, model.optional_double("dropout"));
  if (dropout.value_or(0) != 0) return model.at("dropout")->mismatch("null or 0");
  TANDEM_TRY(refuse_affix(model, "continuing_subword_prefix"));
  TANDEM_TRY(refuse_affix(model, "end_of_word_suffix"));
  TANDEM_TRY(Vocabulary vocabulary, load_vocabulary(model));
  BpeOptions options;
  TANDEM_TRY(const auto unk, model.optional_string("unk_token"));
  if (unk) {
    options.unk_id = vocabulary.find(*unk);
    if (!options.unk_id) return model.at("unk_token")->mismatch("a token of model.vocab");
  }
  TANDEM_TRY(const auto fuse_unk, model.optional_bool("fuse_unk"));
  TANDEM_TRY(const auto byte_fallback, model.optional_bool("byte_fallback"));
  TANDEM_TRY(const auto ignore_merges, model.optional_bool("ignore_merges"));
  options.fuse_unk = fuse_unk.value_or(false);
  options.byte_fallback = byte_fallback.value_or(false);
  options.ignore_merges = ignore_merges.value_or(false);
  t_.model_ = BpeModel(std::move(vocabulary), options);
  return load_merges(model);
}

Status Loader::load_merges(const json::Field& model) {
  TANDEM_TRY(const json::Field field, model.at("merges"));
  TANDEM_TRY(const json::Array* merges, field.as_array());
  const auto path = [&](std::size_t i) { return fmt::format("{}[{}]", field.path(), i); };
  t_.model_.reserve_merges(merges->size());

  struct Ahead {
    BpeModel::NewMerge merge;
    std::string merged;
  };

  std::array<Ahead, 3 * kAhead> ahead;
  const auto before = [&ahead](std::size_t i) -> BpeModel::NewMerge& {
    return ahead[i % ahead.size()].merge;
  };
  for (std::size_t i = 0; i < merges->size() + ahead.size(); ++i) {
    const auto is_merge = [&](std::size_t behind) {
      return i >= behind && i - behind < merges->size();
    };
    if (is_merge(3 * kAhead)) t_.model_.add_merge(before(i - 3 * kAhead));
    if (is_merge(2 * kAhead)) {
      const Status found = t_.model_.resolve(before(i - 2 * kAhead));
      if (!found.ok()) return found.with_context(path(i - 2 * kAhead));
    }
    if (is_merge(kAhead)) t_.model_.prefetch_tokens(before(i - kAhead));
    if (!is_merge(0)) continue;
    const auto [left, right] = read_merge((*merges)[i]);
    if (left.empty() || right.empty()) {
      return json::Field((*merges)[i], path(i))
          .mismatch("two tokens, as \"a b\" or [\"a\", \"b\"]");
    }
    Ahead& next = ahead[i % ahead.size()];
    next.merged.assign(left).append(right);
    next.merge = {Vocabulary::key(left), Vocabulary::key(right), Vocabulary::key(next.merged)};
    t_.model_.prefetch(next.merge);
  }
  return {};
}

Status Loader::add_token(AddedToken token, std::string_view where) {
  const Vocabulary& vocabulary = t_.model_.vocabulary();
  const auto model_id = vocabulary.find(token.content);
  if (model_id ? *model_id != token.id : vocabulary.has(token.id)) {
    return invalid_argument(
        model_id ? fmt::format("{}: token \"{}\" has id {}, but {} in model.vocab",
                               where,
                               token.content,
                               token.id,
                               *model_id)
                 : fmt::format("{}: token \"{}\" has id {}, which model.vocab gives to \"{}\"",
                               where,
                               token.content,
                               token.id,
                               vocabulary.token(token.id)));
  }
  for (AddedToken& other : t_.added_) {
    if (other.id == token.id) {
      return invalid_argument(fmt::format("{}: id {} is given to \"{}\" and to \"{}\"",
                                          where,
                                          token.id,
                                          other.content,
                                          token.content));
    }
  }
  if (!model_id) {
    const Status added = t_.extra_.add(token.content, token.id);
    if (!added.ok()) return added.with_context(where);
  }
  t_.added_.push_back(std::move(token));
  return {};
}

Status Loader::load_added_tokens(const json::Field& root) {
  const json::Field list = member_or_null(root, "added_tokens");
  if (list.is_null()) return {};
  TANDEM_TRY(const auto items, list.items());
  if (items.size() > kAddedTokensMax) {
    return list.mismatch(fmt::format("at most {} added tokens", kAddedTokensMax));
  }
  for (const json::Field& item : items) {
    AddedToken token;
    TANDEM_TRY(const json::Field id, item.at("id"));
    TANDEM_TRY(const std::int64_t number, id.as_int(0, kMaxTokenIds - 1));
    TANDEM_TRY(const json::Field content, item.at("content"));
    TANDEM_TRY(const std::string_view text, content.as_string());
    TANDEM_TRY(const auto special, item.optional_bool("special"));
    TANDEM_TRY(const auto lstrip, item.optional_bool("lstrip"));
    TANDEM_TRY(const auto rstrip, item.optional_bool("rstrip"));
    TANDEM_TRY(const auto single_word, item.optional_bool("single_word"));
    TANDEM_TRY(const auto normalized, item.optional_bool("normalized"));
    token.id = static_cast<std::int32_t>(number);
    token.content = text;
    token.special = special.value_or(false);
    token.lstrip = lstrip.value_or(false);
    token.rstrip = rstrip.value_or(false);
    token.single_word = single_word.value_or(false);
    token.normalized = normalized.value_or(!token.special);
    TANDEM_TRY(add_token(std::move(token), item.path()));
  }
  return {};
}

/// tokenizer_config.json may name tokens that tokenizer.json has only as plain vocabulary, or not
/// at all. Like transformers, make them added tokens, and those with a role special.
Status Loader::add_config_tokens() {
  const auto find_added = [&](std::string_view content) -> AddedToken* {
    for (AddedToken& token : t_.added_) {
      if (token.content == content) return &token;
    }
    return nullptr;
  };
  for (const AddedToken& token : t_.config_.added_tokens) {
    const AddedToken* known = find_added(token.content);
    if (known != nullptr && known->id != token.id) {
      return invalid_argument(
          fmt::format("tokenizer_config.json: added_tokens_decoder.{}: token \"{}\" has id {} in "
                      "tokenizer.json",
                      token.id,
                      token.content,
                      known->id));
    }
    if (known == nullptr)
      TANDEM_TRY(add_token(token, "tokenizer_config.json: added_tokens_decoder"));
  }
  std::vector<std::string> specials = t_.config_.additional_special_tokens;
  for (const auto& [role, content] : t_.config_.role_tokens) {
    specials.push_back(content);
  }
  for (const std::string& content : specials) {
    if (AddedToken* known = find_added(content)) {
      known->special = true;
    } else if (const auto id = t_.model_.vocabulary().find(content); id && !content.empty()) {
      AddedToken token;
      token.id = *id;
      token.content = content;
      token.special = true;
      TANDEM_TRY(add_token(std::move(token), "tokenizer_config.json"));
    }
  }
  return {};
}

void Loader::build_matchers() {
  for (const AddedToken& token : t_.added_) {
    if (token.normalized) {
      t_.normalized_matcher_.add(token, t_.normalizer_.apply(token.content));
    } else {
      t_.raw_matcher_.add(token, token.content);
    }
  }
}

Status Loader::load_post_processor(const json::Field& field, int depth) {
  if (field.is_null()) return {};
  if (depth > 16) return field.error("sequences are nested too deeply");
  TANDEM_TRY(const json::Field type_field, field.at("type"));
  TANDEM_TRY(const std::string_view type, type_field.as_string());
  if (type == "Sequence") {
    TANDEM_TRY(const json::Field list, field.at("processors"));
    TANDEM_TRY(const auto items, list.items());
    for (const json::Field& item : items) {
      TANDEM_TRY(load_post_processor(item, depth + 1));
    }
    return {};
  }
  // ByteLevel only trims offsets, which nobody asks for here.
  if (type == "ByteLevel") return {};
  if (type == "TemplateProcessing") return load_template(field);
  if (type == "BertProcessing" || type == "RobertaProcessing") return load_cls_sep(field);
  return type_field.mismatch(
      "one of TemplateProcessing, ByteLevel, BertProcessing, RobertaProcessing, Sequence");
}

Result<std::int32_t> Loader::known_id(const json::Field& field) {
  TANDEM_TRY(const std::int64_t id, field.as_int(0, kMaxTokenIds - 1));
  const auto small = static_cast<std::int32_t>(id);
  if (!t_.has_token(small)) return field.mismatch("the id of a token");
  return small;
}

Result<std::vector<std::int32_t>> Loader::template_ids(const json::Field& field,
                                                       const json::Field& table) {
  TANDEM_TRY(const json::Field name_field, field.at("id"));
  TANDEM_TRY(const std::string_view name, name_field.as_string());
  const auto entry = table.find(name);
  if (!entry) return name_field.mismatch("a key of special_tokens");
  TANDEM_TRY(const json::Field ids_field, entry->at("ids"));
  TANDEM_TRY(const auto items, ids_field.items());
  std::vector<std::int32_t> ids;
  for (const json::Field& item : items) {
    TANDEM_TRY(const std::int32_t id, known_id(item));
    ids.push_back(id);
  }
  return ids;
}

Status Loader::load_template(const json::Field& field) {
  TANDEM_TRY(const json::Field single, field.at("single"));
  TANDEM_TRY(const auto pieces, single.items());
  const json::Field table = member_or_null(field, "special_tokens");
  std::vector<std::int32_t> prefix;
  std::vector<std::int32_t> suffix;
  bool seen_text = false;
  for (const json::Field& piece : pieces) {
    if (const auto token = piece.find("SpecialToken")) {
      TANDEM_TRY(const auto ids, template_ids(*token, table));
      auto& side = seen_text ? suffix : prefix;
      side.insert(side.end(), ids.begin(), ids.end());
    } else if (piece.find("Sequence") && !seen_text) {
      seen_text = true;
    } else {
      return piece.error("expected SpecialToken, or Sequence once");
    }
  }
  if (!seen_text) return single.error("expected one Sequence");
  t_.prefix_ids_.insert(t_.prefix_ids_.begin(), prefix.begin(), prefix.end());
  t_.suffix_ids_.insert(t_.suffix_ids_.end(), suffix.begin(), suffix.end());
  return {};
}

Status Loader::load_cls_sep(const json::Field& field) {
  for (const char* key : {"cls", "sep"}) {
    TANDEM_TRY(const json::Field pair, field.at(key));
    TANDEM_TRY(const auto items, pair.items());
    if (items.size() != 2) return pair.mismatch("[token, id]");
    TANDEM_TRY(const std::int32_t id, known_id(items[1]));
    auto& side = key[0] == 'c' ? t_.prefix_ids_ : t_.suffix_ids_;
    side.push_back(id);
  }
  return {};
}

void Loader::apply_roles() {
  const auto id_of = [&](std::string_view role) -> std::optional<std::int32_t> {
    const std::string* content = t_.config_.role(role);
    return content == nullptr ? std::nullopt : t_.token_id(*content);
  };
  t_.bos_id_ = id_of("bos_token");
  t_.eos_id_ = id_of("eos_token");
  t_.pad_id_ = id_of("pad_token");
  // transformers rebuilds the post-processor of these classes from the two flags; every other class
  // goes by tokenizer.json.
  const std::string& name = t_.config_.tokenizer_class;
  const bool rebuilt = name.starts_with("Llama") || name.starts_with("CodeLlama") ||
                       name.starts_with("Gemma") || name.starts_with("Cohere");
  if (!rebuilt) return;
  if (t_.config_.add_bos_token && t_.bos_id_) {
    t_.prefix_ids_.clear();
    if (*t_.config_.add_bos_token) t_.prefix_ids_.push_back(*t_.bos_id_);
  }
  if (t_.config_.add_eos_token && t_.eos_id_) {
    t_.suffix_ids_.clear();
    if (*t_.config_.add_eos_token) t_.suffix_ids_.push_back(*t_.eos_id_);
  }
}

Result<std::shared_ptr<const Tokenizer>> Tokenizer::load(const std::filesystem::path& folder) {
  const auto path = folder / "tokenizer.json";
  TANDEM_TRY(const json::Value root, json::parse_file(path, {.max_bytes = kFileBytesMax}));
  TANDEM_TRY(TokenizerConfig config, TokenizerConfig::load(folder));
  auto tokenizer = Loader().run(root, std::move(config));
  if (!tokenizer.ok()) return tokenizer.status().with_context(path.string());
  return tokenizer;
}

Result<std::shared_ptr<const Tokenizer>> Tokenizer::from_json(std::string_view tokenizer_json,
                                                              std::string_view config_json) {
  TokenizerConfig config;
  if (!config_json.empty()) {
    TANDEM_TRY(const json::Value config_root, json::parse(config_json));
    TANDEM_TRY(config, TokenizerConfig::from_json(config_root));
  }
  TANDEM_TRY(const json::Value root, json::parse(tokenizer_json, {.max_bytes = kFileBytesMax}));
  return Loader().run(root, std::move(config));
}

}  // namespace tandem::token
