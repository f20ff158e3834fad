#!/bin/sh
# Writes the stubs of what this client calls to agentmem/v1, with protoc, protoc-gen-go and protoc-gen-go-grpc from PATH.
set -eu
cd "$(dirname "$0")"
module=example.com/agentmem-example
protos=${AGENTMEM_PROTOS:-../../../protos}
# The protos name no Go package, so that the command line does.
names=
for proto in options types inference agent; do names="${names}Magentmem/v1/$proto.proto=$module/agentmem/v1,"; done
protoc -I"$protos" --go_out="${names}module=$module:." --go-grpc_out="${names}module=$module:." \
  agentmem/v1/options.proto agentmem/v1/types.proto agentmem/v1/inference.proto agentmem/v1/agent.proto
