#include "errors.h"

#include <sstream>

#include <google/rpc/code.pb.h>
#include <google/rpc/status.pb.h>

namespace example {

struct Error::Details {
  google::rpc::BadRequest bad_request;
  std::optional<google::rpc::ResourceInfo> missing;
  std::optional<Seconds> retry_after;

  explicit Details(const grpc::Status& status) {
    google::rpc::Status told;
    if (!status.error_details().empty() && told.ParseFromString(status.error_details())) {
      for (const auto& detail : told.details()) {
        google::rpc::ResourceInfo resource;
        google::rpc::RetryInfo retry;
        if (detail.UnpackTo(&resource)) missing = resource;
        if (detail.UnpackTo(&retry)) {
          retry_after = Seconds(retry.retry_delay().seconds() + retry.retry_delay().nanos() / 1e9);
        }
        if (detail.Is<google::rpc::BadRequest>()) detail.UnpackTo(&bad_request);
      }
      return;
    }
    if (is_unreachable(status)) retry_after = Seconds(1);
  }

  // Whether the connection failed, and it is not the gateway that says so: what that says has details.
  static bool is_unreachable(const grpc::Status& status) {
    switch (status.error_code()) {
      case grpc::UNAVAILABLE:
      case grpc::INTERNAL:
      case grpc::UNKNOWN:
      case grpc::CANCELLED:
        return status.error_details().empty();
      default:
        return false;
    }
  }

  std::string line(const grpc::Status& status) const {
    std::ostringstream told;
    told << google::rpc::Code_Name(static_cast<google::rpc::Code>(status.error_code())) << ": " << status.error_message();
    for (const auto& violation : bad_request.field_violations()) told << " (field " << violation.field() << ")";
    if (missing) told << " (" << missing->resource_type() << " \"" << missing->resource_name() << "\")";
    if (retry_after) told << " (try again in " << retry_after->count() << " s)";
    return told.str();
  }
};

Error::Error(const grpc::Status& status) : Error(status, Details(status)) {}

Error::Error(const grpc::Status& status, Details details)
    : std::runtime_error(details.line(status)),
      code(status.error_code()),
      message(status.error_message()),
      bad_request(std::move(details.bad_request)),
      missing(std::move(details.missing)),
      retry_after(details.retry_after) {}

void check(const grpc::Status& status) {
  if (!status.ok()) throw Error(status);
}

}  // namespace example
