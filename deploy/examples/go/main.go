// A small command line over Agentmem's gRPC door.
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"

	"google.golang.org/grpc/codes"

	pb "example.com/agentmem-example/agentmem/v1"
)

const usage = `usage: agentmem-example COMMAND
  generate [-request-id ID] [-max-tokens N] [-ignore-eos] AGENT TEXT   one turn; Ctrl-C cancels
  list                  the agents, and where their KV is
  fork AGENT NEW        a second agent with the same memory
  export AGENT FILE     the agent as one file
  import FILE [AGENT]   an agent from such a file
environment: AGENTMEM_ADDRESS, AGENTMEM_MODEL, AGENTMEM_API_KEY, AGENTMEM_TLS,
             AGENTMEM_CA, AGENTMEM_CLIENT_CERT, AGENTMEM_CLIENT_KEY
`

var errUsage = errors.New("usage")

func main() {
	os.Exit(exitStatus(run()))
}

func exitStatus(err error) int {
	var failed *Error
	switch {
	case err == nil:
		return 0
	case err == errUsage:
		fmt.Fprint(os.Stderr, usage)
		return 2
	case errors.As(err, &failed) && failed.Code == codes.Canceled && failed.RetryAfter == nil:
		fmt.Fprintln(os.Stderr, err)
		return 130
	}
	fmt.Fprintln(os.Stderr, err)
	return 1
}

func run() error {
	turn := Turn{}
	flags := flag.NewFlagSet("agentmem-example", flag.ContinueOnError)
	flags.Usage = func() {}
	flags.StringVar(&turn.ID, "request-id", newID(), "")
	flags.UintVar(&turn.MaxTokens, "max-tokens", 200, "")
	flags.BoolVar(&turn.IgnoreEOS, "ignore-eos", false, "")
	if len(os.Args) < 2 || flags.Parse(os.Args[2:]) != nil {
		return errUsage
	}
	command, given := os.Args[1], flags.Args()
	counts := map[string][2]int{"generate": {2, 2}, "list": {0, 0}, "fork": {2, 2}, "export": {2, 2}, "import": {1, 2}}
	if count, known := counts[command]; !known || len(given) < count[0] || len(given) > count[1] {
		return errUsage
	}
	client, err := Connect()
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	go func() {
		<-ctx.Done()
		stop() // a second Ctrl-C ends the program at once
	}()
	if command == "list" {
		return client.list(ctx)
	}
	key := &pb.AgentKey{AgentId: given[0], ModelId: model()}
	switch command {
	case "generate":
		return client.generate(ctx, key, given[1], turn)
	case "fork":
		return client.fork(ctx, key, given[1])
	case "export":
		return client.export(ctx, key, given[1])
	}
	return client.load(ctx, given[0], append(given, "")[1])
}

func model() string {
	if name := os.Getenv("AGENTMEM_MODEL"); name != "" {
		return name
	}
	return "demo"
}

// newID is an id that no other call has: 128 random bits.
func newID() string {
	bits := make([]byte, 16)
	if _, err := rand.Read(bits); err != nil {
		panic(err)
	}
	return fmt.Sprintf("%x", bits)
}
