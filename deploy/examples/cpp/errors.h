// What a failed call says, typed: the status, and the details that the gateway sends with it.
#pragma once

#include <chrono>
#include <exception>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <google/rpc/error_details.pb.h>
#include <grpcpp/support/status.h>

namespace example {

using Seconds = std::chrono::duration<double>;

// A call that failed. `what` is all of it, in one line.
class Error : public std::runtime_error {
 public:
  explicit Error(const grpc::Status& status);

  grpc::StatusCode code;
  std::string message;
  // The fields of the request that are wrong, with INVALID_ARGUMENT.
  google::rpc::BadRequest bad_request;
  // What there is not, with NOT_FOUND: a type, such as "agent", and a name.
  std::optional<google::rpc::ResourceInfo> missing;
  // When the call may be made again; none where that would not help.
  std::optional<Seconds> retry_after;

 private:
  struct Details;
  Error(const grpc::Status& status, Details details);
};

// A call that Ctrl-C has ended.
class Interrupted : public std::exception {
 public:
  const char* what() const noexcept override { return "CANCELLED: interrupted"; }
};

// Throws Error unless the call went well.
void check(const grpc::Status& status);

}  // namespace example
