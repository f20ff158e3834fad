// A small command line over Agentmem's gRPC door.
#include <exception>
#include <iostream>
#include <string>
#include <vector>

#include "commands.h"

namespace {

constexpr char kUsage[] = R"(usage: agentmem-example COMMAND
  generate AGENT TEXT [--request-id ID] [--max-tokens N] [--ignore-eos]   one turn; Ctrl-C cancels
  list                  the agents, and where their KV is
  fork AGENT NEW        a second agent with the same memory
  export AGENT FILE     the agent as one file
  import FILE [AGENT]   an agent from such a file
environment: AGENTMEM_ADDRESS, AGENTMEM_MODEL, AGENTMEM_API_KEY, AGENTMEM_TLS,
             AGENTMEM_CA, AGENTMEM_CLIENT_CERT, AGENTMEM_CLIENT_KEY
)";

// Does what the command line asks for; false where it asks for nothing that there is.
bool run(const example::Client& client, std::vector<std::string> given) {
  example::Turn turn;
  std::vector<std::string> words;
  for (auto word = given.begin(); word != given.end(); ++word) {
    if (*word == "--ignore-eos") {
      turn.ignore_eos = true;
    } else if (word->rfind("--", 0) != 0) {
      words.push_back(*word);
    } else if (word + 1 == given.end()) {
      return false;
    } else if (*word == "--request-id") {
      turn.request_id = *++word;
    } else if (*word == "--max-tokens") {
      turn.max_tokens = static_cast<std::uint32_t>(std::stoul(*++word));
    } else {
      return false;
    }
  }
  if (words.empty()) return false;
  const std::string command = words[0];
  const std::size_t count = words.size() - 1;
  words.resize(3);
  agentmem::v1::AgentKey key;
  key.set_agent_id(words[1]);
  key.set_model_id(example::variable("AGENTMEM_MODEL", "demo"));
  if (command == "list" && count == 0) {
    example::list(client);
  } else if (command == "import" && (count == 1 || count == 2)) {
    example::import_agent(client, words[1], words[2]);
  } else if (command == "generate" && count == 2) {
    example::generate(client, key, words[2], turn);
  } else if (command == "fork" && count == 2) {
    example::fork(client, key, words[2]);
  } else if (command == "export" && count == 2) {
    example::export_agent(client, key, words[2]);
  } else {
    return false;
  }
  return true;
}

}  // namespace

int main(int count, char** arguments) {
  const example::Interrupt interrupt;  // before gRPC has threads
  try {
    const example::Client client(interrupt);
    if (run(client, {arguments + 1, arguments + count})) return 0;
    std::cerr << kUsage;
    return 2;
  } catch (const example::Interrupted& interrupted) {
    std::cerr << interrupted.what() << "\n";
    return 130;
  } catch (const example::Error& error) {
    std::cerr << error.what() << "\n";
    return error.code == grpc::StatusCode::CANCELLED && !error.retry_after ? 130 : 1;
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
