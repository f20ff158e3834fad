// A connection to Agentmem: credentials, calls that Ctrl-C ends, and calls that are made again where that helps.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include <agentmem/v1/agent.grpc.pb.h>
#include <agentmem/v1/inference.grpc.pb.h>
#include <grpcpp/grpcpp.h>

#include "errors.h"

namespace example {

// Ctrl-C; the second one ends the program at once. Make one before there are other threads; it is shared by copies.
class Interrupt {
 public:
  Interrupt();
  // From now on it ends this call, until it is told another one, or none.
  void ends(grpc::ClientContext* call) const;
  // Wait. Returns whether it came.
  bool within(Seconds delay) const;

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable came;
    bool has_come = false;
    grpc::ClientContext* call = nullptr;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

// The services that this program calls, by one connection.
class Client {
 public:
  // Reads the variables that Agentmem's command line reads, too. Does not wait for the connection.
  explicit Client(Interrupt interrupt);

  std::unique_ptr<agentmem::v1::InferenceService::Stub> inference;
  std::unique_ptr<agentmem::v1::AgentService::Stub> agents;

  // Calls `attempt` until it throws no Error, again after as long as the gateway says, or after a second where the
  // connection fails. The context is for one call, which Ctrl-C ends, and has the key and `id`, by which the gateway's
  // logs know the call. Throws the last Error, or Interrupted.
  void retrying(const std::string& id, const std::function<void(grpc::ClientContext&)>& attempt) const;

 private:
  Interrupt interrupt_;
  std::string api_key_;
};

// The variable of the environment, or what to take where it is not set.
std::string variable(const char* name, const std::string& otherwise = "");

// An id that no other call has: 128 random bits.
std::string new_id();

}  // namespace example
