// Checkpoints that are right, and a table of ways in which they lie.
#include "common/base/descriptor.h"
#include "common/weights/checkpoint.h"

#include <gtest/gtest.h>

#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace tandem::weights {
namespace {

namespace fs = std::filesystem;

/// A folder that goes away with the test.
class TempFolder {
 public:
  TempFolder() {
    std::string name = (fs::temp_directory_path() / "tandem_weights_XXXXXX").string();
    TANDEM_CHECK(::mkdtemp(name.data()) != nullptr, "cannot make a folder for the test");
    path_ = name;
  }

  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  ~TempFolder() {
    std::error_code error;
    fs::remove_all(path_, error);
  }

  [[nodiscard]] const std::string& path() const { return path_; }

  void write(const std::string& name, const std::string& bytes) const {
    std::ofstream file(path_ + "/" + name, std::ios::binary);
    file << bytes;
  }

 private:
  std::string path_;
};

std::string file_of(const std::string& header, const std::string& data) {
  std::string bytes(8, '\0');
  const std::uint64_t length = header.size();
  std::memcpy(bytes.data(), &length, sizeof length);
  return bytes + header + data;
}

std::string with_length(std::uint64_t length, const std::string& rest) {
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, sizeof length);
  return bytes + rest;
}

std::string entry(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}

/// Two tensors, 8 and 4 bytes.
const std::string kGoodHeader = R"({"__metadata__":{"format":"pt"},"a":)" +
                                entry("F32", "[2]", "[0,8]") + R"(,"b":)" +
                                entry("BF16", "[1,2]", "[8,12]") + "}";
const std::string kData = "0123456789ab";

std::span<const std::byte> as_bytes(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

TEST(Safetensors, ReadsAGoodFile) {
  const std::string file = file_of(kGoodHeader, kData);
  const auto entries = parse_safetensors(as_bytes(file), "x");
  ASSERT_TRUE(entries.ok()) << entries.status().message();
  ASSERT_EQ(entries->size(), 2U);
  EXPECT_EQ((*entries)[1].name, "b");
  EXPECT_EQ((*entries)[1].type, ElementType::kBF16);
  EXPECT_EQ((*entries)[1].shape, (std::vector<std::int64_t>{1, 2}));
  EXPECT_EQ(file.substr((*entries)[1].offset, (*entries)[1].byte_count), "89ab");
}

TEST(Safetensors, AllowsScalarsAndEmptyTensors) {
  const std::string header = R"({"empty":)" + entry("F32", "[0,7]", "[0,0]") + R"(,"scalar":)" +
                             entry("F32", "[]", "[0,4]") + R"(,"tail":)" +
                             entry("U8", "[0]", "[4,4]") + "}";
  const auto entries = parse_safetensors(as_bytes(file_of(header, "1234")), "x");
  ASSERT_TRUE(entries.ok()) << entries.status().message();
  EXPECT_EQ(entries->size(), 3U);
}

struct LieRow {
  const char* name;
  std::string file;
  std::vector<const char*> words;  ///< All must occur in the message, beside the file's name.
};

std::string one(const std::string& value, const std::string& data = kData) {
  return file_of(R"({"a":)" + value + "}", data);
}

std::vector<LieRow> lies() {
  const std::string good = file_of(kGoodHeader, kData);
  return {
      {"empty file", "", {"0 bytes", "truncated"}},
      {"cut in the length", good.substr(0, 5), {"5 bytes", "truncated"}},
      {"cut in the header", good.substr(0, 40), {"header length", "32 follow", "truncated"}},
      {"cut in the data", good.substr(0, good.size() - 1), {"'b'", "byte 12", "11 bytes"}},
      {"bytes at the end", good + "zz", {"2 bytes after", "'b'"}},
      {"header of 2^63", with_length(1ULL << 63U, "{}"), {"9223372036854775808", "100000000"}},
      {"header just over the limit", with_length(100'000'001, "{}"), {"100000001", "100000000"}},
      {"header longer than the file", with_length(3, "{}"), {"3 bytes", "only 2"}},
      {"header of no bytes", with_length(0, ""), {"begin with '{'"}},
      {"no JSON", file_of("{nonsense", ""), {"header", "expected"}},
      {"an array", file_of("[1,2]", ""), {"begin with '{'"}},
      {"invalid UTF-8", file_of("{\"\xff\":1}", ""), {"header"}},
      {"deep", file_of(R"({"a":[[[[[[1]]]]]]})", ""), {"header"}},
      {"trailing text", file_of("{} {}", ""), {"header"}},
      {"a name twice",
       file_of(R"({"a":)" + entry("F32", "[1]", "[0,4]") + R"(,"a":)" +
                   entry("F32", "[1]", "[4,8]") + "}",
               "12345678"),
       {"header", "a"}},
      {"metadata is no object",
       file_of(R"({"__metadata__":7})", ""),
       {"__metadata__", "integer 7"}},
      {"entry is no object", one("[]"), {"'a'", "array"}},
      {"entry is null", one("null"), {"'a'", "null"}},
      {"no dtype", one(R"({"shape":[3],"data_offsets":[0,12]})"), {"'a'", "dtype", "missing"}},
      {"no shape", one(R"({"dtype":"F32","data_offsets":[0,12]})"), {"'a'", "shape", "missing"}},
      {"no offsets", one(R"({"dtype":"F32","shape":[3]})"), {"'a'", "data_offsets", "missing"}},
      {"unknown dtype", one(entry("Q4_K", "[3]", "[0,12]")), {"'a'", "Q4_K", "BF16"}},
      {"dtype is a number", one(R"({"dtype":5,"shape":[3],"data_offsets":[0,12]})"), {"'a'", "5"}},
      {"negative extent", one(entry("F32", "[-3]", "[0,12]")), {"'a'", "shape", "-3"}},
      {"fractional extent", one(entry("F32", "[2.5]", "[0,12]")), {"'a'", "shape", "2.5"}},
      {"extent over 64 bits",
       one(entry("F32", "[99999999999999999999]", "[0,12]")),
       {"'a'", "shape"}},
      {"product over 64 bits",
       one(entry("F32", "[4294967296,4294967296,4294967296]", "[0,12]")),
       {"'a'", "more than 2^64", "span 12"}},
      {"product that wraps to the right size",
       one(entry("F32", "[4611686018427387904,1]", "[0,0]"), ""),
       {"'a'", "more than 2^64"}},
      {"too many dimensions", one(entry("F32", "[1,1,1,1,1,1,1,1,3]", "[0,12]")), {"'a'", "9"}},
      {"shape smaller than the span", one(entry("F32", "[2]", "[0,12]")), {"takes 8", "span 12"}},
      {"shape larger than the span", one(entry("F64", "[3]", "[0,12]")), {"takes 24", "span 12"}},
      {"offsets beyond the file", one(entry("F32", "[4]", "[0,16]")), {"byte 16", "12 bytes"}},
      {"huge offsets",
       one(entry("F32", "[3]", "[9223372036854775795,9223372036854775807]")),
       {"'a'", "12 bytes"}},
      {"offsets reversed", one(entry("F32", "[3]", "[12,0]")), {"'a'", "begin <= end"}},
      {"one offset", one(entry("F32", "[3]", "[12]")), {"'a'", "[begin, end]"}},
      {"three offsets", one(entry("F32", "[3]", "[0,6,12]")), {"'a'", "[begin, end]"}},
      {"negative offset", one(entry("F32", "[3]", "[-4,8]")), {"'a'", "-4"}},
      {"overlap",
       file_of(R"({"a":)" + entry("F32", "[2]", "[0,8]") + R"(,"b":)" +
                   entry("F32", "[2]", "[4,12]") + "}",
               kData),
       {"'b'", "overlap", "expected 8"}},
      {"gap",
       file_of(R"({"a":)" + entry("F32", "[1]", "[0,4]") + R"(,"b":)" +
                   entry("F32", "[1]", "[8,12]") + "}",
               kData),
       {"'b'", "gap", "expected 4"}},
      {"gap before the first", one(entry("F32", "[2]", "[4,12]")), {"'a'", "gap"}},
      {"no name", file_of(R"({"":)" + entry("F32", "[3]", "[0,12]") + "}", kData), {"0 bytes"}},
      {"long name",
       file_of("{\"" + std::string(2000, 'n') + "\":" + entry("F32", "[3]", "[0,12]") + "}", kData),
       {"2000 bytes"}},
  };
}

TEST(Safetensors, NamesWhatIsWrong) {
  for (const LieRow& row : lies()) {
    SCOPED_TRACE(row.name);
    // A copy without spare capacity: a read past the end is seen by the sanitizers.
    const std::vector<char> exact(row.file.begin(), row.file.end());
    const auto entries = parse_safetensors(std::as_bytes(std::span(exact)), "dir/f.safetensors");
    ASSERT_FALSE(entries.ok());
    EXPECT_NE(entries.status().code(), Code::kInternal);
    const std::string message = entries.status().message();
    EXPECT_NE(message.find("dir/f.safetensors"), std::string::npos) << message;
    for (const char* word : row.words) {
      EXPECT_NE(message.find(word), std::string::npos) << "no \"" << word << "\" in: " << message;
    }
  }
}

TEST(Safetensors, SurvivesEveryCutAndEveryFlippedByte) {
  const std::string good = file_of(kGoodHeader, kData);
  for (std::size_t size = 0; size < good.size(); ++size) {
    const std::vector<char> cut(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(size));
    EXPECT_FALSE(parse_safetensors(std::as_bytes(std::span(cut)), "f").ok()) << "cut at " << size;
  }
  for (std::size_t at = 0; at < good.size() - kData.size(); ++at) {
    for (const unsigned flip : {0x01U, 0x20U, 0x80U, 0xFFU}) {
      std::vector<char> bent(good.begin(), good.end());
      bent[at] = static_cast<char>(static_cast<unsigned char>(bent[at]) ^ flip);
      const auto entries = parse_safetensors(std::as_bytes(std::span(bent)), "f");
      if (!entries.ok()) continue;  // Some flips only rename a tensor.
      for (const TensorEntry& one_entry : *entries) {
        EXPECT_LE(one_entry.offset + one_entry.byte_count, bent.size());
      }
    }
  }
}

std::string index_of(const std::string& map) {
  return R"({"metadata":{"total_size":12},"weight_map":)" + map + "}";
}

const std::string kShardA = file_of(R"({"a":)" + entry("F32", "[2]", "[0,8]") + "}", "01234567");
const std::string kShardB = file_of(R"({"b":)" + entry("F32", "[1]", "[0,4]") + "}", "89ab");

TEST(Checkpoint, ReadsShardsAndSingleFilesAlike) {
  const TempFolder sharded;
  sharded.write("m-1.safetensors", kShardA);
  sharded.write("m-2.safetensors", kShardB);
  sharded.write("model.safetensors.index.json",
                index_of(R"({"a":"m-1.safetensors","b":"m-2.safetensors"})"));
  const TempFolder single;
  single.write("model.safetensors",
               file_of(R"({"b":)" + entry("F32", "[1]", "[0,4]") + R"(,"a":)" +
                           entry("F32", "[2]", "[4,12]") + "}",
                       "89ab01234567"));
  for (const ReadMode mode : {ReadMode::kMmap, ReadMode::kRead}) {
    const auto first = Checkpoint::open(sharded.path(), {.mode = mode});
    const auto second = Checkpoint::open(single.path(), {.mode = mode});
    ASSERT_TRUE(first.ok()) << first.status().message();
    ASSERT_TRUE(second.ok()) << second.status().message();
    EXPECT_EQ(first->digest().value(), second->digest().value())
        << "sharding is no part of the digest";
    EXPECT_EQ(first->byte_count(), 12U);
    const auto tensor = first->find("b");
    ASSERT_TRUE(tensor.ok());
    EXPECT_EQ(std::memcmp(tensor->bytes.data(), "89ab", 4), 0);
    const Status missing = first->find("c").status();
    EXPECT_EQ(missing.code(), Code::kNotFound);
    EXPECT_NE(missing.message().find("'c'"), std::string::npos);
  }
}

struct FolderRow {
  const char* name;
  std::string index;
  std::vector<const char*> words;
};

bool can_tell(const std::string& folder) {
  const Descriptor file(::open((folder + "/model.safetensors").c_str(), O_RDONLY));
  char byte = 0;

  struct iovec into {
    .iov_base = &byte, .iov_len = 1
  };

  return ::preadv2(file.get(), &into, 1, 0, RWF_NOWAIT) == 1;
}

TEST(Checkpoint, KnowsWhatCanBeReadWithoutWaiting) {
  const TempFolder folder;
  folder.write("model.safetensors",
               file_of(R"({"a":)" + entry("F32", "[2]", "[0,8]") + "}", "89ab0123"));
  for (const ReadMode mode : {ReadMode::kMmap, ReadMode::kRead}) {
    auto checkpoint = Checkpoint::open(folder.path(), {.mode = mode});
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
    // It was just written; some file systems cannot tell, which is to be taken for no.
    EXPECT_EQ(checkpoint->is_cached(), mode == ReadMode::kMmap && can_tell(folder.path()));
    checkpoint->release_files();
    EXPECT_FALSE(checkpoint->is_cached()) << "nothing left to ask";
  }
}

TEST(Checkpoint, NamesWhatIsWrongWithAnIndex) {
  const FolderRow rows[] = {
      {"not JSON", "{", {"index.json"}},
      {"an array", "[]", {"index.json", "array"}},
      {"no map", "{}", {"weight_map", "missing"}},
      {"empty map", index_of("{}"), {"weight_map", "0 tensors"}},
      {"map is a list", index_of("[]"), {"weight_map", "array"}},
      {"shard is a number", index_of(R"({"a":3})"), {"weight_map.a", "integer 3"}},
      {"shard is missing", index_of(R"({"a":"gone.safetensors"})"), {"gone.safetensors", "open"}},
      {"shard above", index_of(R"({"a":"../m-1.safetensors"})"), {"../m-1", "same folder"}},
      {"shard at a path", index_of(R"({"a":"/etc/x.safetensors"})"), {"/etc/x", "same folder"}},
      {"shard below", index_of(R"({"a":"sub/m.safetensors"})"), {"sub/m", "same folder"}},
      {"hidden shard", index_of(R"({"a":".m.safetensors"})"), {"same folder"}},
      {"shard with NUL", index_of("{\"a\":\"m\\u0000.safetensors\"}"), {"same folder"}},
      {"another kind of file", index_of(R"({"a":"config.json"})"), {"config.json", ".safetensors"}},
      {"tensor that the shard lacks",
       index_of(R"({"a":"m-1.safetensors","b":"m-1.safetensors"})"),
       {"'b'", "m-1.safetensors", "does not hold"}},
      {"tensor that the index lacks",
       index_of(R"({"a":"m-1.safetensors","c":"m-2.safetensors"})"),
       {"'b'", "m-2.safetensors", "nothing about it"}},
      {"name twice",
       index_of(R"({"a":"m-1.safetensors","a":"m-2.safetensors"})"),
       {"index.json", "a"}},
  };
  for (const FolderRow& row : rows) {
    SCOPED_TRACE(row.name);
    const TempFolder folder;
    folder.write("m-1.safetensors", kShardA);
    folder.write("m-2.safetensors", kShardB);
    folder.write("config.json", "{}");
    folder.write("model.safetensors.index.json", row.index);
    const auto opened = Checkpoint::open(folder.path(), {});
    ASSERT_FALSE(opened.ok());
    const std::string message = opened.status().message();
    for (const char* word : row.words) {
      EXPECT_NE(message.find(word), std::string::npos) << "no \"" << word << "\" in: " << message;
    }
  }
}

TEST(Checkpoint, NamesWhatIsWrongWithAFolder) {
  const TempFolder folder;
  Status status = Checkpoint::open(folder.path() + "/none", {}).status();
  EXPECT_EQ(status.code(), Code::kNotFound);
  EXPECT_NE(status.message().find("/none"), std::string::npos);

  status = Checkpoint::open(folder.path(), {}).status();
  EXPECT_EQ(status.code(), Code::kNotFound);
  EXPECT_NE(status.message().find("model.safetensors"), std::string::npos);

  folder.write("model.safetensors", file_of(kGoodHeader, kData));
  status = Checkpoint::open(folder.path(), {.file_bytes_max = 20}).status();
  EXPECT_NE(status.message().find("the limit is 20"), std::string::npos) << status.message();

  fs::remove(folder.path() + "/model.safetensors");
  fs::create_directory(folder.path() + "/model.safetensors");
  status = Checkpoint::open(folder.path(), {}).status();
  EXPECT_NE(status.message().find("regular file"), std::string::npos) << status.message();
}

// From the file while it is open, from the mapping or the copy otherwise.
TEST(Checkpoint, ReadsPartsOfTensors) {
  const TempFolder folder;
  folder.write("model.safetensors",
               file_of(R"({"a":)" + entry("U8", "[6]", "[0,6]") + R"(,"b":)" +
                           entry("U8", "[4]", "[6,10]") + "}",
                       "abcdef0123"));
  for (const ReadMode mode : {ReadMode::kMmap, ReadMode::kRead}) {
    auto opened = Checkpoint::open(folder.path(), {.mode = mode});
    ASSERT_TRUE(opened.ok()) << opened.status().message();
    const std::span<const std::byte> bytes = opened->find("b")->bytes;
    for (int turn = 0; turn < 2; ++turn) {
      std::string text(3, '?');
      ASSERT_TRUE(opened->read(bytes.data() + 1, std::as_writable_bytes(std::span(text))).ok());
      EXPECT_EQ(text, "123");
      opened->release_files();
    }
    EXPECT_TRUE(opened->read(bytes.data() + 4, {}).ok()) << "nothing, at the very end";
  }
}

TEST(Checkpoint, AFileThatIsShortenedMeanwhileIsNamed) {
  const TempFolder folder;
  const std::string content(200'000, 'x');
  folder.write("model.safetensors",
               file_of(R"({"a":)" + entry("U8", "[200000]", "[0,200000]") + "}", content));
  const auto opened = Checkpoint::open(folder.path(), {});
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  std::filesystem::resize_file(folder.path() + "/model.safetensors", 1000);
  std::vector<std::byte> out(content.size());
  const Status status = opened->read(opened->find("a")->bytes.data(), out);
  EXPECT_EQ(status.code(), Code::kDataLoss);
  EXPECT_NE(status.message().find("model.safetensors: ended after 1000 bytes"), std::string::npos)
      << status.message();
  const auto digest = opened->digest();
  ASSERT_FALSE(digest.ok());
  EXPECT_EQ(digest.status().code(), Code::kDataLoss);
}

TEST(Checkpoint, DigestSeesNamesShapesTypesAndContent) {
  const auto digest = [](const std::string& header, const std::string& data) {
    const TempFolder folder;
    folder.write("model.safetensors", file_of(header, data));
    const auto opened = Checkpoint::open(folder.path(), {});
    TANDEM_CHECK(opened.ok(), opened.status().message());
    return opened->digest().value();
  };
  const std::string plain = R"({"a":)" + entry("F32", "[4]", "[0,16]") + "}";
  const Digest base = digest(plain, "0123456789abcdef");
  EXPECT_EQ(base, digest(plain + "   ", "0123456789abcdef")) << "padding of the header is no part";
  EXPECT_NE(base, digest(plain, "0123456789abcdeF"));
  EXPECT_NE(base, digest(R"({"b":)" + entry("F32", "[4]", "[0,16]") + "}", "0123456789abcdef"));
  EXPECT_NE(base, digest(R"({"a":)" + entry("I32", "[4]", "[0,16]") + "}", "0123456789abcdef"));
  EXPECT_NE(base, digest(R"({"a":)" + entry("F32", "[2,2]", "[0,16]") + "}", "0123456789abcdef"));

  // A large tensor is sampled: its first, last and inner pieces count.
  const std::string large = R"({"a":)" + entry("U8", "[1000000]", "[0,1000000]") + "}";
  std::string content(1'000'000, 'x');
  const Digest sampled = digest(large, content);
  for (const std::size_t at : {std::size_t{0}, content.size() - 1, content.size() - 4096}) {
    std::string changed = content;
    changed[at] = 'y';
    EXPECT_NE(sampled, digest(large, changed)) << at;
  }
  EXPECT_EQ(base.hex().size(), 32U);
}

}  // namespace
}  // namespace tandem::weights
