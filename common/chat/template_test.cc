#include "common/chat/template.h"

#include "common/base/random.h"
#include "common/json/parse.h"

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>

namespace tandem::chat {
namespace {

Result<std::string> render(const std::string& source,
                           const std::string& vars = "{}",
                           const RenderOptions& options = {}) {
  TANDEM_TRY(const ChatTemplate compiled, ChatTemplate::compile(source, "t"));
  TANDEM_TRY(const json::Value context, json::parse(vars));
  return compiled.render(context, options);
}

struct Row {
  const char* source;
  std::string_view want;
};

TEST(Template, PythonSemantics) {
  const Row rows[] = {
      {"{{ 'x'|int is integer }}{{ '0x1f'|int(base=16) }}", "True31"},
      {"{{ 'abcab'.count('a', 1) }} {{ 'abcab'.count('a', 0, -2) }}", "1 1"},
      {"{{ 'abc'.endswith('b', 0, 2) }} {{ 'abc'.startswith('ab', 0, 1) }}", "True False"},
      {"{{ 'a' + 'b' + '' + 'c' }}|{{ '' + '' + '' }}|{{ 1 + 2 + 0.5 }}|{{ [1] + [2] + [3] }}",
       "abc||3.5|[1, 2, 3]"},
      {"{% set s = 'x' %}{{ s + 'a' + s + ('b' + s + 'c') + s }}{{ s }}", "xaxbxcxx"},
      {"{{ 2 ** 100 }}", "1267650600228229401496703205376"},
      {"{{ -7 // 2 }} {{ 7 // -2 }} {{ -7 % 3 }} {{ 7 % -3 }} {{ -7.5 % 2 }}", "-4 -4 2 -2 0.5"},
      {"{{ 1e16 }} {{ 123456789012345.0 }} {{ 1e-5 }} {{ 0.0001 }} {{ -0.0 }}",
       "1e+16 123456789012345.0 1e-05 0.0001 -0.0"},
      {"{{ 'a\\u00e9\\U0001f642'|length }} {{ 'a\\u00e9b'[1:] }} {{ 'h\\u00e9'[-1] }}",
       "3 \u00e9b \u00e9"},
      {"{{ ['it\\'s', \"q\\\"\", '\\n\\x00\\u200b'] }}", "[\"it's\", 'q\"', '\\n\\x00\\u200b']"},
      {"{{ ' a  b '.split() }}{{ 'a b  c '.split(none, 1) }}{{ ' a b c'.rsplit(none, 1) }}",
       "['a', 'b']['a', 'b  c '][' a b', 'c']"},
      {"{{ 'a\\r\\nb\\rc\\n'.splitlines() }}", "['a', 'b', 'c']"},
      {"{{ 'aXbX'.partition('X') }}{{ 'aXbX'.rpartition('X') }}",
       "('a', 'X', 'bX')('aXb', 'X', '')"},
      {"{{ '-5'.zfill(4) }}{{ 'a'.ljust(3) }}|{{ 'a'.rjust(3, '*') }}", "-005a  |**a"},
      {"{{ 'abcabc'.rfind('b') }}{{ 'h\\u00e9llo'.find('l') }}{{ 'abc'.find('c', 1) }}", "422"},
      {"{{ 'x'.removeprefix('x') }}{{ 'a.txt'.removesuffix('.txt') }}", "a"},
      {"{{ '%5.1f|%-4d|%04d|%x|%s|%%|%(k)s' % {'k': 1} if false else '%5.1f|%-4d|%04d|%x|%r' % "
       "(2.25, 3, -4, 255, 'a') }}",
       "  2.2|3   |-004|ff|'a'"},
      {"{{ '{:>5}|{:<3}|{:^5}|{:05.1f}|{:,}|{!r}|{{}}'.format('a', 'b', 'c', 2.25, 1234567, 'd') "
       "}}",
       "    a|b  |  c  |002.2|1,234,567|'d'|{}"},
      {"{{ '{0.a}{1[0]}'.format({'a': 1}, [2]) }}", "12"},
      {"{% set g = [1,2]|map('string') %}{{ g|list }}{{ g|list }}", "['1', '2'][]"},
      {"{{ 'yes' if []|select else 'no' }}", "yes"},
      {"{{ (1, 'a') < (1, 'b') }}{{ [2] > [1, 5] }}{{ {'a': 1} == {'a': 1.0} }}", "TrueTrueTrue"},
      {"{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}", "123"},
      {"{% set ns = namespace(l=[]) %}{% set ns.l = ns.l + [1] %}{{ ns.l }}", "[1]"},
      {"{% macro m(x) %}{{ y }}{{ x }}{% endmacro %}{% set y = 1 %}{{ m(2) }}", "12"},
      {"{% if true %}{% set x = 1 %}{% endif %}{{ x }}", "1"},
      {"{% for i in [1] %}{% if true %}{% set x = 1 %}{% endif %}{% endfor %}{{ x is defined }}",
       "False"},
      {"{% for i in range(5) if i is odd %}{{ loop.index }}/{{ loop.length }}:{{ i }} {% endfor %}",
       "1/2:1 2/2:3 "},
      {"{{ {'a': {'b': [1, {'c': 2}]}}|tojson(indent=1) }}",
       "{\n \"a\": {\n  \"b\": [\n   1,\n   {\n    \"c\": 2\n   }\n  ]\n }\n}"},
      {"{{ {1: 'a', none: 2, true: 3}|tojson }}", "{\"1\": 3, \"null\": 2}"},
      {"{{ x|tojson if x is defined else 'none' }}", "none"},
      {"{{ [{'a': 2}, {'a': 1}]|sort(attribute='a')|map(attribute='a')|list }}", "[1, 2]"},
      {"{{ 'stra\\u00dfe'|upper }} {{ 'O\\'NEILL x-y'.title() }} {{ 'x-y z'|title }}",
       "STRASSE O'Neill X-Y X-Y Z"},
      {"a\r\nb\n\n", "a\nb\n"},
      {"  {#- c -#}  x", "x"},
      {"{{ '}}' }}{{ {'a': {'b': 1}}['a']['b'] }}", "}}1"},
      {"{% set x = 'a' if false %}{{ x is defined }}", "False"},
      {"{{ [1, 2, 3]|map('default', 0)|sum(start=10) }}", "16"},
      {"{{ not x is defined }}{{ x is not defined and 1 }}", "True1"},
      {"{{ 1 if true else 2 if true else 3 }}{{ 5 is divisibleby(5) }}", "1True"},
      {"{{ dict([('a', 1)], b=2) }}{{ 'a' in {'a': 1}.keys() }}", "{'a': 1, 'b': 2}True"},
      {"{%- generation -%} x {%- endgeneration -%}", "x"},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.source);
    const auto got = render(row.source);
    ASSERT_TRUE(got.ok()) << got.status().message();
    EXPECT_EQ(*got, row.want);
  }
}

TEST(Template, CompileErrorsNameLineAndExpectation) {
  const Row rows[] = {
      {"a\n{% if x %}\n", "t: line 2: unexpected end of template, expected 'endif'"},
      {"a\n\n{{ x", "t: line 3: unexpected end of template, expected '}}'"},
      {"{% for x of y %}", "t: line 1: expected 'in', got 'of'"},
      {"{{ 'abc }}", "t: line 1: a string is not closed"},
      {"{% endif %}", "t: line 1: Encountered unknown tag 'endif'."},
      {"{# open", "t: line 1: Missing end of comment tag"},
      {"{% raw %} x", "t: line 1: Missing end of raw directive"},
      {"{{ a b }}", "t: line 1: expected 'end of print statement', got 'b'"},
      {"{{ x|nofilter }}", "t: line 1: No filter named 'nofilter'."},
      {"{{ x is notest }}", "t: line 1: No test named 'notest'."},
      {"{% break %}", "t: line 1: 'break' outside a loop"},
      {"{% set true = 1 %}", "t: line 1: can't assign to 'true'"},
      {"{% include 'x' %}", "t: line 1: 'include' is not supported"},
      {"{{ ) }}", "t: line 1: unexpected ')'"},
      {"{{ a $ b }}", "t: line 1: unexpected char '$'"},
      {"{{ '\\ud800' }}", "t: line 1: an escape is no Unicode character"},
      {"\xFF", "t: invalid UTF-8 at byte 0"},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.source);
    const auto compiled = ChatTemplate::compile(row.source, "t");
    ASSERT_FALSE(compiled.ok());
    EXPECT_EQ(compiled.status().code(), Code::kInvalidArgument);
    EXPECT_TRUE(compiled.status().message().starts_with(row.want)) << compiled.status().message();
  }
}

TEST(Template, RenderErrors) {
  const Row rows[] = {
      {"{{ raise_exception('no ' ~ 1) }}", "no 1"},
      {"\n{{ x.y }}", "t: line 2: 'x' is undefined"},
      {"{{ {}.a.b }}", "t: line 1: 'dict object' has no attribute 'a'"},
      {"{{ [1]['a'].b }}", "t: line 1: 'list object' has no attribute 'a'"},
      {"{{ 1 + 'a' }}", "t: line 1: unsupported operand type(s) for +: 'int' and 'str'"},
      {"{{ 'a' + 'b' + 1 }}", "t: line 1: unsupported operand type(s) for +: 'str' and 'int'"},
      {"{{ 1 < 'a' }}", "t: line 1: '<' not supported"},
      {"{{ 1 / 0 }}", "t: line 1: division by zero"},
      {"{{ x() }}", "t: line 1: 'x' is undefined"},
      {"{{ 1() }}", "t: line 1: 'int' object is not callable"},
      {"{% for x in 5 %}{% endfor %}", "t: line 1: 'int' object is not iterable"},
      {"{% set a, b = [1] %}", "t: line 1: expected 2 values to unpack, got 1"},
      {"{{ [].append(1) }}", "t: line 1: access to attribute 'append' of 'list' object is unsafe."},
      {"{{ ''.__class__.x }}",
       "t: line 1: access to attribute '__class__' of 'str' object is unsafe."},
      {"{{ x|tojson }}", "t: line 1: Object of type Undefined is not JSON serializable"},
      {"{{ [1]|map('upper')|length }}", "t: line 1: object of type 'generator' has no len()"},
      {"{% macro m() %}{% endmacro %}{{ m(1) }}", "t: line 1: macro 'm' takes not more than 0"},
      {"{{ range(1000000) }}", "t: line 1: Range too big"},
      {"{{ 2 ** 127 }}", "t: line 1: an integer is too large"},
      {"{{ (2 ** 126) * 4 }}", "t: line 1: an integer is too large"},
      {"{{ 'a'.split('') }}", "t: line 1: empty separator"},
      {"{{ '%d' % 'a' }}", "t: line 1: %d format: a real number is required"},
      {"{{ '{}{}'.format(1) }}", "t: line 1: Replacement index out of range"},
      {"{{ {'a': 1}[:2] }}", "t: line 1: 'dict' object cannot be sliced"},
      {"{{ none[1:] }}", "t: line 1: 'NoneType' object cannot be sliced"},
      {"{{ 'a' in 5 }}", "t: line 1: argument of type 'int' is not iterable"},
      {"{{ lipsum() }}", "t: line 1: lipsum() is not supported"},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.source);
    const auto got = render(row.source);
    ASSERT_FALSE(got.ok()) << *got;
    EXPECT_TRUE(got.status().message().starts_with(row.want)) << got.status().message();
  }
}

TEST(Template, Limits) {
  // Small, so that sanitizers get through in time.
  const RenderOptions small = {
      .max_steps = 50'000, .max_output_bytes = 1 << 20, .max_memory_bytes = 16 << 20};
  const char* endless[] = {
      "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
      "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}",
      "{% set ns = namespace(s='x') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% "
      "endfor %}",
      "{% set ns = namespace(s=[1]) %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% "
      "endfor %}",
      "{{ ('x' * 2000000000)|length }}",
      "{% set s = 'x' * 6000000 %}{{ (s + s + s)|length }}",
      "{% set s = 'x' * 100000 %}{{ s|replace('x', s) }}",
      "{% set s = 'x' * 1000000 %}{% for i in range(1000) %}{{ s }}{% endfor %}",
  };
  for (const char* source : endless) {
    SCOPED_TRACE(source);
    EXPECT_EQ(render(source, "{}", small).status().code(), Code::kResourceExhausted);
  }
  const char* deep[] = {
      "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
      "{% set ns = namespace(l=[]) %}{% for i in range(5000) %}{% set ns.l = [ns.l] %}{% endfor "
      "%}{{ ns.l }}",
      "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
  };
  for (const char* source : deep) {
    SCOPED_TRACE(source);
    EXPECT_EQ(render(source).status().code(), Code::kInvalidArgument);
  }
  EXPECT_FALSE(ChatTemplate::compile("{{ " + std::string(100000, '('), "t").ok());
  EXPECT_FALSE(ChatTemplate::compile("{{ " + std::string(100000, '-') + "1 }}", "t").ok());
  EXPECT_FALSE(ChatTemplate::compile(std::string(2 << 20, ' '), "t").ok());
  std::string nested;
  for (int i = 0; i < 5000; ++i) {
    nested += "{% if 1 %}";
  }
  EXPECT_FALSE(ChatTemplate::compile(nested, "t").ok());
  EXPECT_EQ(render("{% for i in range(9) %}{% endfor %}", "{}", {.max_steps = 5}).status().code(),
            Code::kResourceExhausted);
  EXPECT_EQ(render("abcdef", "{}", {.max_output_bytes = 5}).status().code(),
            Code::kResourceExhausted);
}

TEST(Template, ClockAndThreads) {
  const auto compiled =
      ChatTemplate::compile("{{ strftime_now('%d %b %Y %A %-d %f') }}{{ n }}", "t");
  ASSERT_TRUE(compiled.ok());
  RenderOptions options;
  options.now = WallTime{2026, 1, 5, 1, 2, 3};
  std::atomic<int> good = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      const json::Value context = json::Value::object({{"n", i}});
      for (int k = 0; k < 100; ++k) {
        const auto got = compiled->render(context, options);
        good += got.ok() && *got == "05 Jan 2026 Monday 5 000000" + std::to_string(i) ? 1 : 0;
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(good, 400);
}

TEST(Template, DamagedTemplatesDoNotCrash) {
  const std::string good =
      "{%- for m in messages if m.role != 'x' -%}{{ loop.index0 ~ m['content'][1:-1]|trim|upper }}"
      "{%- set ns.a = ns.a + 1 %}{% if not m.x is defined and (1, 2)|length > 1 %}{{ "
      "m|tojson(indent=2) }}"
      "{% else %}{{ '%s' % m.role }}{% endif %}{% endfor %}{% macro f(a, b=[1]) %}{{ a.b.c }}{% "
      "endmacro %}"
      "{{ f({'b': {'c': 'q\\n'.split('q')}}) }}{# c #}{% raw %}{{ x }}{% endraw %}";
  const auto context = json::parse(
      R"({"messages":[{"role":"user","content":"h\u00e9llo"},{"role":"x","content":""}]})");
  const std::string pieces = "{}%#|.()[]'\"-+~*/ \nabcimx019:=,<>!";
  int rendered = 0;
  for (std::uint64_t seed = 1; seed <= 3000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    std::string source = "{% set ns = namespace(a=0) %}" + good;
    for (std::uint64_t i = 1 + random.below(3); i > 0; --i) {
      const std::size_t at = 29 + random.below(source.size() - 29);
      switch (random.below(3)) {
        case 0:
          source[at] = pieces[random.below(pieces.size())];
          break;
        case 1:
          source.erase(at, 1 + random.below(8));
          break;
        default:
          source.insert(at, source.substr(29 + random.below(source.size() - 29), random.below(12)));
      }
    }
    const auto compiled = ChatTemplate::compile(source, "t");
    if (compiled.ok() && compiled->render(*context).ok()) ++rendered;
  }
  EXPECT_GT(rendered, 100);
}

class LoadTemplate : public testing::Test {
 public:
  ~LoadTemplate() override { std::filesystem::remove_all(folder_); }

 protected:
  LoadTemplate()
      : folder_(std::filesystem::path(testing::TempDir()) /
                ("tandem_chat_test_" + std::to_string(::getpid()))) {
    std::filesystem::create_directories(folder_);
  }

  void write(const char* name, const std::string& text) const {
    std::ofstream(folder_ / name) << text;
  }

  std::filesystem::path folder_;
};

TEST_F(LoadTemplate, FileWinsOverConfigAndExplicitOverBoth) {
  EXPECT_EQ(load_chat_template(folder_).status().code(), Code::kNotFound);
  write("tokenizer_config.json", R"({"chat_template":[{"name":"default","template":"config"},
      {"name":"tool_use","template":"tools"}]})");
  EXPECT_EQ(load_chat_template(folder_)->source(), "config");
  EXPECT_EQ(load_chat_template(folder_, {.name = "tool_use"})->source(), "tools");
  EXPECT_EQ(load_chat_template(folder_, {.name = "rag"}).status().code(), Code::kNotFound);
  write("chat_template.jinja", "file");
  EXPECT_EQ(load_chat_template(folder_)->source(), "file");
  write("mine.jinja", "mine");
  EXPECT_EQ(load_chat_template(folder_, {.explicit_path = folder_ / "mine.jinja"})->source(),
            "mine");
  EXPECT_EQ(load_chat_template(folder_, {.explicit_path = folder_ / "gone"}).status().code(),
            Code::kNotFound);
  write("chat_template.jinja", "{% if %}");
  const auto broken = load_chat_template(folder_);
  EXPECT_EQ(broken.status().message(),
            (folder_ / "chat_template.jinja").string() +
                ": line 1: expected an expression, got 'end of statement block'");
}

}  // namespace
}  // namespace tandem::chat
