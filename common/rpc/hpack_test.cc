#include "common/rpc/internal/hpack.h"

#include "common/base/random.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace tandem::rpc::internal {
namespace {

std::string from_hex(std::string_view hex) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2)
    bytes.push_back(static_cast<char>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16)));
  return bytes;
}

using Fields = std::vector<HeaderField>;

// RFC 7541, C.5 and C.6: three answers on one connection whose table holds 256 bytes, so that
// fields are forgotten in between; plain and with the Huffman code.
TEST(Hpack, ExamplesOfTheRfc) {
  const std::string resize = from_hex("3fe101");  // a table of 256 bytes, which the examples assume
  const Fields first = {{":status", "302"},
                        {"cache-control", "private"},
                        {"date", "Mon, 21 Oct 2013 20:13:21 GMT"},
                        {"location", "https://www.example.com"}};
  Fields second = first;
  second[0].second = "307";
  const Fields third = {{":status", "200"},
                        {"cache-control", "private"},
                        {"date", "Mon, 21 Oct 2013 20:13:22 GMT"},
                        {"location", "https://www.example.com"},
                        {"content-encoding", "gzip"},
                        {"set-cookie", "foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1"}};
  const std::vector<std::vector<std::string>> connections = {
      {"4803333032580770726976617465611d4d6f6e2c203231204f637420323031332032303a31333a323120474d54"
       "6e1768747470733a2f2f7777772e6578616d706c652e636f6d",
       "4803333037c1c0bf",
       "88c1611d4d6f6e2c203231204f637420323031332032303a31333a323220474d54c05a04677a69707738666f6f"
       "3d4153444a4b48514b425a584f5157454f50495541585157454f49553b206d61782d6167653d333630303b2076"
       "657273696f6e3d31"},
      {"488264025885aec3771a4b6196d07abe941054d444a8200595040b8166e082a62d1bff6e919d29ad171863c78f0"
       "b"
       "97c8e9ae82ae43d3",
       "4883640effc1c0bf",
       "88c16196d07abe941054d444a8200595040b8166e084a62d1bffc05a839bd9ab77ad94e7821dd7f2e6c7b335df"
       "dfcd5b3960d5af27087f3672c1ab270fb5291f9587316065c003ed4ee5b1063d5007"}};
  for (const auto& blocks : connections) {
    HpackDecoder decoder;
    ASSERT_TRUE(decoder.decode(resize).ok());
    const Fields* want[] = {&first, &second, &third};
    for (std::size_t i = 0; i < 3; ++i) {
      const auto fields = decoder.decode(from_hex(blocks[i]));
      ASSERT_TRUE(fields.ok()) << fields.status().message();
      EXPECT_EQ(*fields, *want[i]) << i;
    }
  }
}

TEST(Hpack, WhatIsWrittenIsRead) {
  std::string block;
  const Fields fields = {{":path", "/a.B/C"}, {"x", ""}, {"long", std::string(5000, 'y')}};
  for (const auto& [name, value] : fields)
    append_header(block, name, value);
  HpackDecoder decoder;
  EXPECT_EQ(*decoder.decode(block), fields);
}

struct BadRow {
  const char* name;
  const char* hex;
};

TEST(Hpack, WhatIsNotHpackIsRefused) {
  for (const BadRow& row : {BadRow{"index 0", "80"},
                            BadRow{"index beyond the tables", "be"},
                            BadRow{"name beyond the tables", "7f0001"},
                            BadRow{"a string that goes on", "0005616263"},
                            BadRow{"no value", "000161"},
                            BadRow{"no name", "00"},
                            BadRow{"number without end", "ffffffffffffffff"},
                            BadRow{"number that ends early", "ff80"},
                            BadRow{"a table too large", "3fe21f"},
                            BadRow{"padding of zeros", "00016181a0"},
                            BadRow{"a whole byte of padding", "00016182cfff"},
                            BadRow{"the end inside", "00016184ffffffff"}}) {
    SCOPED_TRACE(row.name);
    HpackDecoder decoder;
    EXPECT_EQ(decoder.decode(from_hex(row.hex)).status().code(), Code::kDataLoss);
  }
  // Many names for one large remembered field: a small block must not become a large answer.
  std::string bomb =
      "\x40\x01"
      "a"
      "\x7f\xd1\x1e";  // 4048 bytes follow
  bomb.append(4048 - 48, 'z');
  bomb.resize(6 + 4048, 'z');
  bomb.append(100, '\xbe');
  HpackDecoder decoder;
  EXPECT_EQ(decoder.decode(bomb).status().code(), Code::kDataLoss);
}

TEST(Hpack, AnyBytesAreFieldsOrAnError) {
  for (std::uint64_t seed = 1; seed <= 2000; ++seed) {
    Random random(seed);
    HpackDecoder decoder;
    for (int block = 0; block < 4; ++block) {
      std::string bytes(random.below(40), '\0');
      for (char& byte : bytes)
        byte = static_cast<char>(random.below(256));
      (void)decoder.decode(bytes).ok();
    }
  }
}

}  // namespace
}  // namespace tandem::rpc::internal
