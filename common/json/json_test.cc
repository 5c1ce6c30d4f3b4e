#include "common/base/random.h"
#include "common/json/field.h"
#include "common/json/parse.h"
#include "common/json/utf8.h"
#include "common/json/value.h"
#include "common/json/write.h"

#include <gtest/gtest.h>

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>

namespace tandem::json {
namespace {

struct TextRow {
  const char* name;
  std::string_view text;
  std::string_view want;  // written again, or the error
};

TEST(Parse, AcceptsAndWritesBack) {
  const TextRow rows[] = {
      {"null", " null ", "null"},
      {"words", "[true,false,null]", "[true,false,null]"},
      {"ints",
       "[0,-0,1,-1,9223372036854775807,-9223372036854775808]",
       "[0,0,1,-1,9223372036854775807,-9223372036854775808]"},
      {"uint",
       "[9223372036854775808,18446744073709551615]",
       "[9223372036854775808,18446744073709551615]"},
      {"beyond 64 bits",
       "[18446744073709551616,-9223372036854775809]",
       "[18446744073709551616.0,-9223372036854775808.0]"},
      {"doubles", "[1.0,0.1,1e22,-2.5E-3,1e-400,5e-324]", "[1.0,0.1,1e+22,-0.0025,0.0,5e-324]"},
      {"escapes",
       R"(["\"\\\/\b\f\n\r\t\u0041\u00e9\ud83d\ude42\u0000"])",
       "[\"\\\"\\\\/\\b\\f\\n\\r\\tA\xC3\xA9\xF0\x9F\x99\x82\\u0000\"]"},
      {"order", R"({"b":1,"a":{"d":[],"c":{}}})", R"({"b":1,"a":{"d":[],"c":{}}})"},
      {"last duplicate wins", R"({"a":1,"b":2,"a":3})", R"({"a":3,"b":2})"},
      {"space", " \t\r\n[ 1 , { \"a\" : 2 } ] \n", R"([1,{"a":2}])"},
  };
  for (const TextRow& row : rows) {
    SCOPED_TRACE(row.name);
    const auto value = parse(row.text);
    ASSERT_TRUE(value.ok()) << value.status().message();
    EXPECT_EQ(to_string(*value), row.want);
  }
}

TEST(Parse, RefusesWithPlace) {
  const TextRow rows[] = {
      {"empty", "", "byte 0): expected a value, found the end"},
      {"garbage after", "{} x", "byte 3): expected the end of the text, found 'x'"},
      {"two values", "1 2", "expected the end of the text, found '2'"},
      {"trailing comma", "[1,]", "byte 3): expected a value, found ']'"},
      {"trailing comma in object", R"({"a":1,})", "expected a key in double quotes, found '}'"},
      {"line and column", "{\n  \"a\": tru\n}", "line 2, column 8 (byte 9): expected a value"},
      {"leading zero", "01", "must not start with 0"},
      {"minus", "-", "expected a digit"},
      {"point", "1.", "expected a digit after the decimal point"},
      {"plus", "+1", "expected a value, found '+'"},
      {"NaN", "NaN", "expected a value"},
      {"huge number", "1e999", "number 1e999 is beyond the range of a double"},
      {"control", "\"a\nb\"", "control character 0x0a in a string"},
      {"bad escape", R"("\x41")", "after a backslash"},
      {"short hex", R"("\u12")", "four hexadecimal digits"},
      {"lone high", R"("\ud83dx")", "lone high surrogate"},
      {"lone low", R"("\ude42")", "lone low surrogate"},
      {"open string", "\"abc", "expected the end of the string"},
      {"invalid utf-8", "[\"ab\xC3(\"]", "invalid UTF-8 at byte offset 4"},
      {"overlong", "\"\xC0\x80\"", "invalid UTF-8 at byte offset 1"},
      {"surrogate bytes", "\"\xED\xA0\x80\"", "invalid UTF-8 at byte offset 1"},
      {"byte order mark", "\xEF\xBB\xBF{}", "found byte 0xef"},
      {"single quotes", "{'a':1}", "expected a key in double quotes, found '''"},
      {"comment", "[1 /* x */]", "expected ',' or ']', found '/'"},
      {"nul", std::string_view("1\0", 2), "found byte 0x00"},
  };
  for (const TextRow& row : rows) {
    SCOPED_TRACE(row.name);
    const auto value = parse(row.text);
    ASSERT_FALSE(value.ok());
    EXPECT_EQ(value.status().code(), Code::kInvalidArgument);
    EXPECT_NE(value.status().message().find(row.want), std::string::npos)
        << value.status().message();
  }
}

// Strings are scanned many bytes at once.
TEST(Parse, EveryByteAtEveryPlaceOfAString) {
  // Looked at 16 and 64 at a time.
  constexpr std::size_t kLength = 170;
  for (int byte = 0; byte < 0x100; ++byte) {
    for (std::size_t at = 0; at < kLength; ++at) {
      SCOPED_TRACE("byte " + std::to_string(byte) + " at " + std::to_string(at));
      std::string text(kLength, '\x7f');
      text[at] = static_cast<char>(byte);
      const auto value = parse("\"" + text + "\"");
      if (byte >= 0x20 && byte < 0x80 && byte != '"' && byte != '\\') {
        ASSERT_TRUE(value.ok()) << value.status().message();
        ASSERT_TRUE(value->is_string());
        EXPECT_EQ(*value->if_string(), text);
        continue;
      }
      ASSERT_FALSE(value.ok());
      const std::string& message = value.status().message();
      if (byte != '"' && byte != '\\') {
        const std::string place = std::to_string(at + 1);
        const std::string want = byte < 0x20 ? "byte " + place + "): control character"
                                             : "invalid UTF-8 at byte offset " + place;
        EXPECT_NE(message.find(want), std::string::npos) << message;
      }
    }
  }
}

// Arrays of short integers are taken eight bytes at once.
TEST(Parse, ArraysOfIntegersOfEveryLength) {
  for (const std::string_view separator : {",", ", ", " ,", ",\n  "}) {
    std::vector<std::int64_t> numbers{0, 7};
    for (std::int64_t power = 10; power < 100'000'000'000; power *= 10) {
      for (const std::int64_t number : {power - 1, power, power + 7, power * 12 / 10, -power})
        numbers.push_back(number);
    }
    for (std::size_t turn = 0; turn < numbers.size(); ++turn) {
      std::string text = "[";
      for (const std::int64_t number : numbers)
        text += (text.size() > 1 ? std::string(separator) : "") + std::to_string(number);
      text += "]";
      const auto value = parse(text);
      ASSERT_TRUE(value.ok()) << text << value.status().message();
      ASSERT_EQ(value->if_array()->size(), numbers.size());
      for (std::size_t i = 0; i < numbers.size(); ++i)
        ASSERT_EQ(*(*value->if_array())[i].if_int(), numbers[i]) << text;
      std::rotate(numbers.begin(), numbers.begin() + 1, numbers.end());
    }
  }
  for (const char* wrong :
       {"[1,02,3]", "[1,2/,3,4,5,6]", "[1,2:3,4,5,6,7]", "[1,2\xB5,3,4,5,6]", "[12345678"})
    EXPECT_FALSE(parse(wrong).ok()) << wrong;
  EXPECT_TRUE(parse("[1,2.5,3e2,4]").ok());
}

// The same array held in two ways, or the same complaint.
void expect_same_as_integers(const std::string& text, const ParseOptions& options = {}) {
  SCOPED_TRACE(text);
  constexpr std::string_view kLists[] = {"ids", "other"};
  ParseOptions wanting = options;
  wanting.integer_lists = kLists;
  const auto plain = parse(text, options);
  const auto got = parse(text, wanting);
  ASSERT_EQ(got.ok(), plain.ok());
  if (!plain.ok()) {
    EXPECT_EQ(got.status().code(), plain.status().code());
    EXPECT_EQ(got.status().message(), plain.status().message());
    return;
  }
  EXPECT_EQ(*got, *plain);
  EXPECT_EQ(*plain, *got);
  EXPECT_EQ(to_string(*got), to_string(*plain));
  EXPECT_EQ(to_pretty_string(*got), to_pretty_string(*plain));
  const Value* ids = got->find("ids");
  if (ids == nullptr) return;
  EXPECT_EQ(describe(*ids), describe(*plain->find("ids")));
  EXPECT_EQ(ids->is_array(), plain->find("ids")->is_array());
}

TEST(Parse, IntegerListsAreTheSameArrays) {
  constexpr std::string_view kLists[] = {"ids"};
  const ParseOptions options{.integer_lists = kLists};
  const auto held = parse(R"({"a":[1,2],"ids":[ 1 ,22,0],"b":{"ids":[3]}})", options);
  ASSERT_TRUE(held.ok());
  ASSERT_NE(held->find("ids")->if_integers(), nullptr);
  EXPECT_EQ(*held->find("ids")->if_integers(), (Integers{1, 22, 0}));
  EXPECT_EQ(held->find("ids")->if_array(), nullptr);
  EXPECT_NE(held->find("a")->if_array(), nullptr);
  // Only under the root's members of that name.
  EXPECT_NE(held->find("b")->find("ids")->if_array(), nullptr);
  const auto nested = parse(R"({"ids":[[1,2],[],[3,"x"],[4]]})", options);
  ASSERT_TRUE(nested.ok());
  const Array& lists = *nested->find("ids")->if_array();
  EXPECT_NE(lists[0].if_integers(), nullptr);
  EXPECT_NE(lists[2].if_array(), nullptr);
  EXPECT_EQ(*lists[3].if_integers(), Integers{4});
  EXPECT_EQ(Value(Integers{1, 2}), Value::array({1, 2.0}));
  EXPECT_FALSE(Value(Integers{1, 2}) == Value::array({1, 3}));
  EXPECT_FALSE(Value(Integers{1, 2}) == Value::array({1, 2, 3}));
  EXPECT_FALSE(Value(Integers{1}) == Value(1));
}

TEST(Parse, IntegerListsAsArraysWithAnyItems) {
  for (const char* text : {R"({"ids":[]})",
                           R"({"ids":[1]})",
                           R"({"ids":[1,]})",
                           R"({"ids":[1,2)",
                           R"({"ids":[)",
                           R"({"ids":[1,"x",2]})",
                           R"({"ids":[1,[2,3],4]})",
                           R"({"ids":[1,-2,3]})",
                           R"({"ids":[1,02]})",
                           R"({"ids":[1 2]})",
                           R"({"ids":[1,2.5,3]})",
                           R"({"ids":[1e3,2]})",
                           R"({"ids":[1,{"ids":[2]}]})",
                           R"({"ids":{"a":[1]},"other":[5]})",
                           R"({"ids":[1],"ids":[2]})",
                           R"([1,2,{"ids":[3]}])",
                           R"([1,2])",
                           R"({"ids":[1,,2]})",
                           R"({"ids":[,1]})",
                           R"({"ids":[999999999,1000000000,99999999999999999999]})"})
    expect_same_as_integers(text);
  for (std::uint64_t seed = 1; seed <= 2000; ++seed) {
    Random random(seed);
    // With something before and behind or not: the fast loop keeps away from both ends.
    std::string text = random.chance(0.5) ? "{\"ids\":[" : R"({"before":"something","ids":[)";
    const std::uint64_t count = 1 + random.below(60);
    const std::string separator = random.chance(0.5) ? "," : random.chance(0.5) ? ", " : " ,\n ";
    for (std::uint64_t i = 0; i < count; ++i) {
      if (i > 0) text += separator;
      std::uint64_t ten = 1;
      for (std::uint64_t digits = random.below(random.chance(0.1) ? 12 : 6); digits > 0; --digits)
        ten *= 10;
      text += std::to_string(random.below(ten));
    }
    text += random.chance(0.5) ? "]}" : R"(],"behind":[1,2,3],"more":"0,1,2,3,4,5,6,7,8,9,10"})";
    expect_same_as_integers(text);
    expect_same_as_integers(text, {.max_values = 1 + random.below(2 * count)});
    for (int i = 0; i < 4; ++i) {
      std::string damaged = text;
      constexpr std::string_view kBytes = "0123456789,,,  []{}\"-.eE\xff/:";
      damaged[random.below(damaged.size())] = kBytes[random.below(kBytes.size())];
      expect_same_as_integers(damaged);
    }
    expect_same_as_integers(text.substr(0, random.below(text.size())));
  }
}

TEST(Parse, Limits) {
  const std::string deep(100000, '[');
  const auto too_deep = parse(deep, {.max_depth = 1 << 20});
  EXPECT_EQ(too_deep.status().code(), Code::kResourceExhausted);
  EXPECT_NE(too_deep.status().message().find("deeper than 1000"), std::string::npos);
  EXPECT_EQ(parse(std::string(100000, '{')).status().code(), Code::kInvalidArgument);
  EXPECT_TRUE(parse("[[]]", {.max_depth = 2}).ok());
  EXPECT_FALSE(parse("[[[]]]", {.max_depth = 2}).ok());
  EXPECT_TRUE(parse("[1]", {.max_bytes = 3}).ok());
  EXPECT_EQ(parse("[1 ]", {.max_bytes = 3}).status().code(), Code::kResourceExhausted);
  EXPECT_TRUE(parse("[1,2]", {.max_values = 3}).ok());
  EXPECT_EQ(parse("[1,2,3]", {.max_values = 3}).status().code(), Code::kResourceExhausted);
  const auto duplicate = parse(R"({"a":1,"a":2})", {.reject_duplicate_keys = true});
  EXPECT_NE(duplicate.status().message().find("duplicate key \"a\""), std::string::npos);
  // The first key that comes again, in small objects and in those with an index.
  std::string many = R"({"a":1,"b":2,)";
  for (int i = 0; i < 40; ++i)
    many += fmt::format("\"key {}\":0,", i);
  for (const std::string& begin : {std::string(R"({"a":1,"b":2,)"), many}) {
    const auto twice = parse(begin + R"("b":3,"a":4})", {.reject_duplicate_keys = true});
    EXPECT_NE(twice.status().message().find("duplicate key \"b\""), std::string::npos);
  }
  EXPECT_TRUE(parse(std::string(1000, '[') + std::string(1000, ']'), {.max_depth = 1000}).ok());
}

TEST(Parse, File) {
  const auto folder = std::filesystem::path(testing::TempDir());
  const auto path = folder / ("tandem_json_test_" + std::to_string(::getpid()) + ".json");
  EXPECT_EQ(parse_file(path).status().code(), Code::kNotFound);
  std::ofstream(path) << "{\"a\": ";
  const auto broken = parse_file(path);
  EXPECT_EQ(broken.status().message().find(path.string() + ": line 1"), 0U);
  std::ofstream(path) << "{\"a\": 1}";
  EXPECT_TRUE(parse_file(path).ok());
  EXPECT_EQ(parse_file(path, {.max_bytes = 4}).status().code(), Code::kResourceExhausted);
  std::filesystem::remove(path);
  EXPECT_EQ(parse_file(folder).status().code(), Code::kInvalidArgument);
}

TEST(Object, ManyKeysStayOrderedAndFound) {
  Object object;
  for (int i = 0; i < 5000; ++i) {
    EXPECT_TRUE(object.set("key" + std::to_string(i), i));
  }
  EXPECT_FALSE(object.set("key17", "new"));
  EXPECT_TRUE(object.erase("key18"));
  EXPECT_FALSE(object.erase("key18"));
  EXPECT_EQ(object.size(), 4999U);
  const Object copy = object;
  EXPECT_EQ(*copy.find("key17"), Value("new"));
  EXPECT_EQ(*copy.find("key4999"), Value(4999));
  EXPECT_EQ(copy.find("key18"), nullptr);
  EXPECT_EQ(copy.find("key5000"), nullptr);
  EXPECT_EQ((copy.begin() + 18)->key, "key19");
}

// Keys of few values, so that many come twice: as if each had been set in turn.
TEST(Object, OfMembersIsAsIfSetInTurn) {
  Random random(3);
  for (const std::size_t count : {0, 1, 2, 15, 16, 17, 18, 40, 300, 5000}) {
    for (const std::size_t keys : {count / 2 + 1, 4 * count * count + 1}) {
      std::vector<Member> members;
      Object want;
      std::string text;
      for (std::size_t i = 0; i < count; ++i) {
        const std::string key = "key " + std::to_string(random.below(keys));
        members.push_back({key, i});
        want.set(key, i);
        text += fmt::format("{}\"{}\":{}", i == 0 ? "{" : ",", key, i);
      }
      text += count == 0 ? "{}" : "}";
      const Object made(members);
      ASSERT_EQ(to_string(Value(made)), to_string(Value(want)));
      for (const Member& member : want)
        ASSERT_EQ(made.find_member(member.key), made.begin() + (&member - want.begin()));
      EXPECT_EQ(made.find("key"), nullptr);
      const auto parsed = parse(text);
      ASSERT_TRUE(parsed.ok()) << parsed.status().message();
      EXPECT_EQ(to_string(*parsed), to_string(Value(want)));
      EXPECT_EQ(parse(text, {.reject_duplicate_keys = true}).ok(), want.size() == count);
    }
  }
}

TEST(Value, Equality) {
  EXPECT_EQ(Value(1), Value(1.0));
  EXPECT_FALSE(Value(1) == Value(1.5));
  EXPECT_FALSE(Value(1) == Value(true));
  EXPECT_FALSE(Value(INT64_MAX) == Value(0x1p63));
  EXPECT_EQ(Value(std::uint64_t{1} << 63), Value(0x1p63));
  EXPECT_EQ(*parse(R"({"a":1,"b":[2]})"), *parse(R"({"b":[2.0],"a":1})"));
  EXPECT_FALSE(*parse(R"({"a":1})") == *parse(R"({"b":1})"));
}

TEST(Write, Numbers) {
  struct Row {
    double number;
    std::string_view want;
  };

  const double inf = std::numeric_limits<double>::infinity();
  const Row rows[] = {{0, "0.0"},
                      {-0.0, "-0.0"},
                      {0.1, "0.1"},
                      {1e300, "1e+300"},
                      {inf, "null"},
                      {-inf, "null"},
                      {NAN, "null"},
                      {100, "100.0"}};
  for (const Row& row : rows) {
    std::string out;
    append_number(out, row.number);
    EXPECT_EQ(out, row.want);
  }
  std::string out;
  append_number(out, 0.1F);
  append_number(out, std::uint8_t{7});
  append_number(out, UINT64_MAX);
  append_number(out, INT64_MIN);
  EXPECT_EQ(out, "0.1718446744073709551615-9223372036854775808");
}

TEST(Write, BrokenUtf8BecomesReplacement) {
  std::string out;
  append_string(out, "a\xC3(\xF0\x9F\x99z\xFF\x7F");
  EXPECT_EQ(out, "\"a\xEF\xBF\xBD(\xEF\xBF\xBDz\xEF\xBF\xBD\x7F\"");
}

TEST(Write, WriterPlacesCommas) {
  std::string out;
  Writer w(out);
  w.begin_object();
  w.key("a");
  w.begin_array();
  w.number(1);
  w.number(0.5F);
  w.string("x\"");
  w.begin_object();
  w.end_object();
  w.end_array();
  w.key("b");
  w.boolean(true);
  w.key("c");
  w.null();
  w.key("d");
  w.raw("[1]");
  w.key("e");
  w.value(Value::object({{"z", 1}}));
  w.end_object();
  EXPECT_EQ(out, R"({"a":[1,0.5,"x\"",{}],"b":true,"c":null,"d":[1],"e":{"z":1}})");
  EXPECT_EQ(to_pretty_string(*parse(R"({"a":[1,{}],"b":[]})")),
            "{\n  \"a\": [\n    1,\n    {}\n  ],\n  \"b\": []\n}");
}

Value random_value(Random& random, int depth) {
  switch (random.next() % (depth > 3 ? 6 : 8)) {
    case 0:
      return nullptr;
    case 1:
      return random.next() % 2 == 0;
    case 2:
      return static_cast<std::int64_t>(random.next() >> (random.next() % 64));
    case 3:
      return random.next();
    case 4: {
      double number = 0;
      const std::uint64_t bits = random.next();
      std::memcpy(&number, &bits, sizeof(number));
      return std::isfinite(number) ? number : 0.25;
    }
    case 5: {
      std::string text;
      for (std::uint64_t i = random.next() % 12; i > 0; --i) {
        const auto code =
            static_cast<char32_t>(random.next() % (random.next() % 2 ? 128 : 0x11000));
        append_utf8(text, code >= 0xD800 && code < 0xE000 ? U'?' : code);
      }
      return text;
    }
    case 6: {
      Array items;
      for (std::uint64_t i = random.next() % 5; i > 0; --i) {
        items.push_back(random_value(random, depth + 1));
      }
      return items;
    }
    default: {
      Object members;
      for (std::uint64_t i = random.next() % 40; i > 0; --i) {
        members.set("k" + std::to_string(random.next() % 60), random_value(random, depth + 1));
      }
      return members;
    }
  }
}

// Text is looked at many bytes at once.
TEST(Write, EveryByteAtEveryPlaceOfAString) {
  for (std::size_t length = 1; length <= 40; ++length) {
    for (std::size_t at = 0; at < length; ++at) {
      for (const char special : {'"', '\\', '\n', '\x1f', '\x7f', '\x20', 'x'}) {
        std::string text(length, '~');
        text[at] = special;
        std::string out;
        append_string(out, text);
        const auto again = parse(out);
        ASSERT_TRUE(again.ok()) << out;
        ASSERT_EQ(*again->if_string(), text);
        const bool escaped = special != '\x7f' && special != '\x20' && special != 'x';
        EXPECT_EQ(out.size() > length + 2, escaped) << out;
        std::string object;
        Writer writer(object);
        writer.begin_object();
        writer.key("0");
        writer.number(std::numeric_limits<std::int64_t>::min());
        writer.key(text);
        writer.number(std::numeric_limits<std::uint64_t>::max());
        writer.end_object();
        ASSERT_EQ(object, "{\"0\":-9223372036854775808," + out + ":18446744073709551615}");
      }
    }
  }
}

TEST(Write, NamesKnownBeforeAndLate) {
  std::string out;
  Writer writer(out);
  const std::string late = "la\"te";
  writer.begin_array();
  writer.begin_object();
  writer.key(late);
  writer.null();
  writer.key("a name of forty-three signs and no more ...");
  writer.null();
  writer.key(late.c_str());
  writer.null();
  writer.end_object();
  writer.begin_object();
  writer.key("");
  writer.null();
  writer.end_object();
  writer.end_array();
  EXPECT_EQ(out,
            R"([{"la\"te":null,"a name of forty-three signs and no more ...":null,"la\"te":null},)"
            R"({"":null}])");
}

TEST(Property, ParseOfPrintIsTheSame) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    const Value value = random_value(random, 0);
    for (const std::string& text : {to_string(value), to_pretty_string(value)}) {
      const auto again = parse(text);
      ASSERT_TRUE(again.ok()) << again.status().message() << "\n" << text;
      EXPECT_EQ(*again, value);
      EXPECT_EQ(to_string(*again), to_string(value));
    }
    // Damaged texts fail or parse, they do not crash.
    std::string damaged = to_string(value);
    for (int i = 0; i < 20; ++i) {
      damaged[random.next() % damaged.size()] = static_cast<char>(random.next());
      const auto result = parse(damaged);
      if (!result.ok()) continue;
      EXPECT_EQ(find_invalid_utf8(to_string(*result)), to_string(*result).size());
    }
  }
}

TEST(Field, ErrorsNamePathAndValue) {
  const Value root = *parse(R"({"sampling_params":{"temperature":"x","n":1.5,"top_k":-3,"ok":7.0},
      "messages":[{"role":1}],"ids":[1,2,"a"],"big":18446744073709551615,"none":null})");
  const Field field(root);
  const Field params = *field.at("sampling_params");
  EXPECT_EQ(params.at("temperature")->as_double().status().message(),
            "sampling_params.temperature: expected a number, found string \"x\"");
  EXPECT_EQ(params.at("n")->as_int().status().message(),
            "sampling_params.n: expected an integer, found number 1.5");
  EXPECT_EQ(params.at("top_k")->as_int(1, 10).status().message(),
            "sampling_params.top_k: expected an integer from 1 to 10, found integer -3");
  EXPECT_EQ(params.at("ok")->as_int().value(), 7);
  EXPECT_EQ(params.at("gone").status().message(), "sampling_params.gone: missing");
  const auto messages = field.at("messages")->items();
  EXPECT_EQ((*messages)[0].at("role")->as_string().status().message(),
            "messages[0].role: expected a string, found integer 1");
  EXPECT_EQ(field.at("ids")->as_ints().status().message(),
            "ids[2]: expected an integer, found string \"a\"");
  EXPECT_EQ(field.at("ids")->as_strings().status().message(),
            "ids[0]: expected a string, found integer 1");
  EXPECT_EQ(field.at("big")->as_uint().value(), UINT64_MAX);
  EXPECT_FALSE(field.at("big")->as_int().ok());
  EXPECT_EQ(field.as_array().status().message(), "expected an array, found object with 5 keys");
  EXPECT_FALSE(field.find("none").has_value());
  EXPECT_FALSE(field.optional_bool("none").value().has_value());
  EXPECT_FALSE(field.optional_string("missing").value().has_value());
  EXPECT_FALSE(params.optional_string("n").ok());
  EXPECT_EQ(params.optional_double("n").value(), 1.5);
  EXPECT_EQ(params.optional_int("top_k").value(), -3);
}

TEST(Field, SmallIntegers) {
  constexpr std::string_view kLists[] = {"ids"};
  const Value root =
      *parse(R"({"ids":[1,2,9,3,8],"plain":[1,2,9,3,8]})", {.integer_lists = kLists});
  for (const char* name : {"ids", "plain"}) {
    SCOPED_TRACE(name);
    const Field field(*root.find(name), name);
    EXPECT_EQ(*field.as_small_ints(1, 9), (std::vector<std::int32_t>{1, 2, 9, 3, 8}));
    EXPECT_EQ(field.as_small_ints(0, 7).status().message(),
              std::string(name) + "[2]: expected an integer from 0 to 7, found integer 9");
    EXPECT_EQ(field.as_small_ints(2, 9).status().message(),
              std::string(name) + "[0]: expected an integer from 2 to 9, found integer 1");
    EXPECT_EQ(field.as_small_ints(INT32_MIN, INT32_MAX)->size(), 5U);
  }
  const Value none{Integers{}};
  EXPECT_TRUE(Field(none).as_small_ints(0, 1)->empty());
}

// Arrays of plain integers are read in a loop of their own; it must give and refuse the same.
TEST(Parse, ArraysOfIntegers) {
  const auto parsed = parse("[0,1, 22 ,333,999999999,1000000000,12345678901234567890,-4,5.5,6]");
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  const Value want = Value::array(
      {0, 1, 22, 333, 999999999, 1000000000, std::uint64_t{12345678901234567890ULL}, -4, 5.5, 6});
  EXPECT_EQ(*parsed, want);
  for (const char* text : {"[1,]", "[1,,2]", "[01,2]", "[1,02]", "[1 2]", "[1,2", "[1,x]", "[,1]"})
    EXPECT_FALSE(parse(text).ok()) << text;
  EXPECT_FALSE(parse("[1,2,3,4]", {.max_values = 4}).ok());
  EXPECT_TRUE(parse("[1,2,3,4]", {.max_values = 5}).ok());
}

}  // namespace
}  // namespace tandem::json
