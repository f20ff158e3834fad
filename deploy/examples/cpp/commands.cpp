#include "commands.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <iostream>
#include <system_error>
#include <vector>

namespace example {
namespace {

namespace v1 = agentmem::v1;

constexpr std::size_t kChunkBytes = 256 * 1024;
constexpr std::chrono::minutes kUnaryTime(1);

bool begins(const std::string& text, const std::string& beginning) {
  return text.compare(0, beginning.size(), beginning) == 0;
}

// Makes a call that has one answer until it succeeds.
template <typename Request, typename Response, typename Stub>
Response unary(const Client& client, Stub& stub,
               grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*), const Request& request) {
  Response response;
  client.retrying(new_id(), [&](grpc::ClientContext& context) {
    context.set_deadline(std::chrono::system_clock::now() + kUnaryTime);
    check((stub.*method)(&context, request, &response));
  });
  return response;
}

// A file by its descriptor. Throws std::system_error.
class File {
 public:
  File(const std::string& path, int flags) : path_(path), descriptor_(::open(path.c_str(), flags | O_CLOEXEC, 0600)) {
    if (descriptor_ < 0) fail();
  }
  File(const File&) = delete;
  ~File() { ::close(descriptor_); }

  void write(const std::string& bytes) const {
    for (std::size_t done = 0; done < bytes.size();) {
      const auto written = ::write(descriptor_, bytes.data() + done, bytes.size() - done);
      if (written < 0) fail();
      done += static_cast<std::size_t>(written);
    }
  }
  void sync() const {
    if (::fsync(descriptor_) != 0) fail();
  }
  // The next bytes, none at the end.
  std::string read(std::size_t most) const {
    std::string bytes(most, '\0');
    const auto count = ::read(descriptor_, bytes.data(), most);
    if (count < 0) fail();
    bytes.resize(static_cast<std::size_t>(count));
    return bytes;
  }

 private:
  [[noreturn]] void fail() const { throw std::system_error(errno, std::generic_category(), path_); }
  std::string path_;
  int descriptor_;
};

}  // namespace

void generate(const Client& client, const v1::AgentKey& key, const std::string& text, const Turn& turn) {
  v1::GenerateRequest request;
  *request.mutable_key() = key;
  request.set_request_id(turn.request_id);
  auto& message = *request.mutable_append()->mutable_messages()->add_messages();
  message.set_role("user");
  message.set_content(text);
  request.set_max_tokens(turn.max_tokens);
  request.mutable_sampling()->set_temperature(0);
  request.mutable_sampling()->set_ignore_eos(turn.ignore_eos);

  std::string shown;  // of all attempts together
  v1::Finished finished;
  client.retrying(turn.request_id, [&](grpc::ClientContext& context) {
    const auto stream = client.inference->Generate(&context, request);
    std::string answer;
    for (v1::GenerateResponse event; stream->Read(&event);) {
      if (event.has_finished()) finished = event.finished();
      answer += event.delta().text();
      if (begins(shown, answer)) continue;  // again, after an attempt that broke off
      if (!begins(answer, shown)) {
        std::cout << "\n";  // the answer is another one now
        shown.clear();
      }
      std::cout << answer.substr(shown.size()) << std::flush;
      shown = answer;
    }
    check(stream->Finish());  // with OK, finished has come
    if (answer != shown) std::cout << "\n" << answer << std::flush;  // shorter than what an earlier attempt showed
  });
  std::uint32_t reused = 0;
  for (const auto& part : finished.usage().cached()) reused += part.tokens();
  std::cerr << "\n[reused " << reused << " tokens, generated " << finished.usage().completion_tokens() << ", version "
            << finished.version().version() << (finished.replayed() ? ", replayed" : "") << "]" << std::endl;
}

void list(const Client& client) {
  v1::ListAgentsRequest request;
  do {
    const auto page = unary(client, *client.agents, &v1::AgentService::Stub::ListAgents, request);
    for (const auto& agent : page.agents()) {
      auto place = v1::Tier_Name(agent.tier()).substr(sizeof("TIER_") - 1);
      std::transform(place.begin(), place.end(), place.begin(), [](unsigned char letter) { return std::tolower(letter); });
      std::cout << agent.key().agent_id() << "\t" << agent.key().model_id() << "\t" << agent.tokens() << " tokens\t"
                << agent.turns() << " turns\t" << place << "\n";
    }
    request.set_page_token(page.next_page_token());
  } while (!request.page_token().empty());
}

void fork(const Client& client, const v1::AgentKey& key, const std::string& name) {
  v1::ForkAgentRequest request;
  *request.mutable_key() = key;
  request.set_new_agent_id(name);
  const auto made = unary(client, *client.agents, &v1::AgentService::Stub::ForkAgent, request).agent();
  std::cout << made.key().agent_id() << ": " << made.tokens() << " tokens, version " << made.version().version() << "\n";
}

void export_agent(const Client& client, const v1::AgentKey& key, const std::string& path) {
  v1::ExportAgentRequest request;
  *request.mutable_key() = key;
  const std::string part = path + "." + new_id() + ".part";
  std::size_t size = 0;
  try {
    client.retrying(new_id(), [&](grpc::ClientContext& context) {
      size = 0;
      const File file(part, O_WRONLY | O_CREAT | O_TRUNC);  // with mode 600: it holds all that the agent was told
      const auto stream = client.agents->ExportAgent(&context, request);
      try {
        for (v1::ExportAgentResponse piece; stream->Read(&piece);) {
          file.write(piece.chunk());
          size += piece.chunk().size();
        }
      } catch (...) {
        context.TryCancel();  // a stream that is left before its end goes on otherwise
        stream->Finish();
        throw;
      }
      check(stream->Finish());
      file.sync();
    });
    if (std::rename(part.c_str(), path.c_str()) != 0) throw std::system_error(errno, std::generic_category(), path);
  } catch (...) {
    ::unlink(part.c_str());
    throw;
  }
  std::cout << path << ": " << size << " bytes\n";
}

void import_agent(const Client& client, const std::string& path, const std::string& name) {
  v1::ImportAgentResponse made;
  client.retrying(new_id(), [&](grpc::ClientContext& context) {
    const File file(path, O_RDONLY);
    const auto stream = client.agents->ImportAgent(&context, &made);
    v1::ImportAgentRequest request;
    request.mutable_key()->set_agent_id(name);
    try {
      while (stream->Write(request)) {
        request.set_chunk(file.read(kChunkBytes));
        if (request.chunk().empty()) break;
      }
    } catch (...) {
      context.TryCancel();
      stream->Finish();
      throw;
    }
    stream->WritesDone();
    check(stream->Finish());  // where Write failed, this says why
  });
  const auto& agent = made.agent();
  std::cout << agent.key().agent_id() << " on " << agent.key().model_id() << ": " << agent.tokens() << " tokens, "
            << agent.warm_tokens() << " with KV\n";
}

}  // namespace example
