#include "client.h"

#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <random>
#include <sstream>
#include <system_error>
#include <thread>

namespace example {
namespace {

using Clock = std::chrono::steady_clock;

// For how long a call is made again.
constexpr Seconds kPatience(30);

std::string content(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream content;
  if (!file || !(content << file.rdbuf())) throw std::system_error(errno, std::generic_category(), path);
  return content.str();
}

// TLS where a variable asks for it, with gRPC's certificate authorities unless AGENTMEM_CA names one.
std::shared_ptr<grpc::ChannelCredentials> credentials() {
  const auto ca = variable("AGENTMEM_CA"), cert = variable("AGENTMEM_CLIENT_CERT"), key = variable("AGENTMEM_CLIENT_KEY");
  if (variable("AGENTMEM_TLS").empty() && ca.empty() && cert.empty() && key.empty()) {
    return grpc::InsecureChannelCredentials();
  }
  grpc::SslCredentialsOptions options;
  if (!ca.empty()) options.pem_root_certs = content(ca);
  if (!cert.empty()) {
    options.pem_cert_chain = content(cert);
    options.pem_private_key = content(key);
  }
  return grpc::SslCredentials(options);
}

}  // namespace

Interrupt::Interrupt() {
  // The signal is blocked in all threads and waited for by one: a handler of it may not call gRPC.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::thread([state = state_, signals] {
    int number;
    sigwait(&signals, &number);
    {
      const std::lock_guard lock(state->mutex);
      state->has_come = true;
      if (state->call != nullptr) state->call->TryCancel();
      state->came.notify_all();
    }
    pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);  // the next one does what it does by default
    for (;;) pause();
  }).detach();
}

void Interrupt::ends(grpc::ClientContext* call) const {
  const std::lock_guard lock(state_->mutex);
  state_->call = call;
  if (state_->has_come && call != nullptr) call->TryCancel();
}

bool Interrupt::within(Seconds delay) const {
  std::unique_lock lock(state_->mutex);
  return state_->came.wait_for(lock, delay, [this] { return state_->has_come; });
}

Client::Client(Interrupt interrupt) : interrupt_(std::move(interrupt)), api_key_(variable("AGENTMEM_API_KEY")) {
  grpc::ChannelArguments options;
  options.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 20'000);  // a gateway that has vanished is noticed
  options.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
  options.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1'000);
  const auto channel = grpc::CreateCustomChannel(variable("AGENTMEM_ADDRESS", "127.0.0.1:50051"), credentials(), options);
  inference = agentmem::v1::InferenceService::NewStub(channel);
  agents = agentmem::v1::AgentService::NewStub(channel);
}

void Client::retrying(const std::string& id, const std::function<void(grpc::ClientContext&)>& attempt) const {
  const auto ends = Clock::now() + kPatience;
  for (;;) {
    grpc::ClientContext context;
    context.AddMetadata("x-request-id", id);
    if (!api_key_.empty()) context.AddMetadata("authorization", "Bearer " + api_key_);
    // Whatever happens, Ctrl-C forgets the context before it is gone.
    const std::unique_ptr<const Interrupt, void (*)(const Interrupt*)> watched(
        &interrupt_, [](const Interrupt* interrupt) { interrupt->ends(nullptr); });
    interrupt_.ends(&context);
    try {
      attempt(context);
      return;
    } catch (const Error& error) {
      if (interrupt_.within(Seconds(0))) throw Interrupted();
      if (!error.retry_after) throw;
      const Seconds delay = std::max(*error.retry_after, Seconds(0.1));
      if (Clock::now() + delay > ends) throw;
      std::cerr << error.what() << "; trying again" << std::endl;
      if (interrupt_.within(delay)) throw Interrupted();
    }
  }
}

std::string variable(const char* name, const std::string& otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr || *value == '\0' ? otherwise : value;
}

std::string new_id() {
  std::random_device random;
  std::ostringstream id;
  id << std::hex << std::setfill('0');
  for (int i = 0; i < 4; ++i) id << std::setw(8) << random();
  return id.str();
}

}  // namespace example
