// What the commands do. Each throws Error, or std::system_error for files.
#pragma once

#include <cstdint>
#include <string>

#include "client.h"

namespace example {

struct Turn {
  // A turn that was committed under it is replayed, and nothing is computed.
  std::string request_id = new_id();
  std::uint32_t max_tokens = 200;
  bool ignore_eos = false;
};

// One turn, whose answer is written as it comes. It is made again under the same id, which cannot double it.
void generate(const Client& client, const agentmem::v1::AgentKey& key, const std::string& text, const Turn& turn);

// The agents, and where their KV is.
void list(const Client& client);

// A second agent with the same memory.
void fork(const Client& client, const agentmem::v1::AgentKey& key, const std::string& name);

// The agent as a file, which is there when it is whole.
void export_agent(const Client& client, const agentmem::v1::AgentKey& key, const std::string& path);

// An agent of such a file; without a name it has that of the file.
void import_agent(const Client& client, const std::string& path, const std::string& name);

}  // namespace example
