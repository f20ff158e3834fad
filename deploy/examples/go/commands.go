package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	pb "example.com/agentmem-example/agentmem/v1"
)

const (
	chunkBytes = 256 * 1024
	unaryTime  = time.Minute
)

// Turn is how generate's turn is made. One that was committed under the ID is replayed, and nothing is computed.
type Turn struct {
	ID        string
	MaxTokens uint
	IgnoreEOS bool
}

// generate runs one turn and writes its answer as it comes. It is made again under the same id, which cannot double it.
func (c *Client) generate(ctx context.Context, key *pb.AgentKey, text string, turn Turn) error {
	said := &pb.Messages{Messages: []*pb.ChatMessage{{Role: "user", Content: text}}}
	request := &pb.GenerateRequest{
		Key:       key,
		RequestId: turn.ID,
		Input:     &pb.GenerateRequest_Append{Append: &pb.Append{Content: &pb.Append_Messages{Messages: said}}},
		MaxTokens: proto.Uint32(uint32(turn.MaxTokens)),
		Sampling:  &pb.Sampling{Temperature: proto.Float32(0), IgnoreEos: turn.IgnoreEOS},
	}
	var finished *pb.Finished
	shown := "" // of all attempts together
	err := retrying(ctx, func() error {
		stream, err := c.Inference.Generate(c.named(ctx, turn.ID), request)
		if err != nil {
			return failure(err)
		}
		answer := ""
		for {
			event, err := stream.Recv()
			if err == io.EOF {
				if answer != shown { // shorter than what an earlier attempt showed
					fmt.Print("\n" + answer)
				}
				return nil // finished has come
			}
			if err != nil {
				return failure(err)
			}
			if event.GetFinished() != nil {
				finished = event.GetFinished()
			}
			answer += event.GetDelta().GetText()
			if strings.HasPrefix(shown, answer) {
				continue // again, after an attempt that broke off
			}
			if !strings.HasPrefix(answer, shown) {
				fmt.Println() // the answer is another one now
				shown = ""
			}
			fmt.Print(answer[len(shown):])
			shown = answer
		}
	})
	if err != nil {
		return err
	}
	reused, replayed := uint32(0), ""
	for _, part := range finished.Usage.GetCached() {
		reused += part.Tokens
	}
	if finished.Replayed {
		replayed = ", replayed"
	}
	fmt.Fprintf(os.Stderr, "\n[reused %d tokens, generated %d, version %d%s]\n",
		reused, finished.Usage.GetCompletionTokens(), finished.Version.GetVersion(), replayed)
	return nil
}

// list prints the agents, and where their KV is.
func (c *Client) list(ctx context.Context) error {
	for token := ""; ; {
		var page *pb.ListAgentsResponse
		err := c.unary(ctx, func(ctx context.Context) (err error) {
			page, err = c.Agents.ListAgents(ctx, &pb.ListAgentsRequest{PageToken: token})
			return err
		})
		if err != nil {
			return err
		}
		for _, agent := range page.Agents {
			place := strings.ToLower(strings.TrimPrefix(agent.Tier.String(), "TIER_"))
			fmt.Printf("%s\t%s\t%d tokens\t%d turns\t%s\n",
				agent.Key.AgentId, agent.Key.ModelId, agent.Tokens, agent.Turns, place)
		}
		if token = page.NextPageToken; token == "" {
			return nil
		}
	}
}

// fork makes a second agent with the same memory.
func (c *Client) fork(ctx context.Context, key *pb.AgentKey, name string) error {
	var made *pb.ForkAgentResponse
	err := c.unary(ctx, func(ctx context.Context) (err error) {
		made, err = c.Agents.ForkAgent(ctx, &pb.ForkAgentRequest{Key: key, NewAgentId: name})
		return err
	})
	if err != nil {
		return err
	}
	agent := made.Agent
	fmt.Printf("%s: %d tokens, version %d\n", agent.Key.AgentId, agent.Tokens, agent.Version.Version)
	return nil
}

// unary makes a call that has one answer until it succeeds.
func (c *Client) unary(ctx context.Context, call func(context.Context) error) error {
	return retrying(ctx, func() error {
		limited, cancel := context.WithTimeout(ctx, unaryTime)
		defer cancel()
		return failure(call(c.named(limited, newID())))
	})
}

// export writes the agent to a file, which is there when it is whole.
func (c *Client) export(ctx context.Context, key *pb.AgentKey, path string) error {
	part := fmt.Sprintf("%s.%s.part", path, newID())
	defer os.Remove(part)
	size := 0
	err := retrying(ctx, func() (err error) {
		file, err := os.OpenFile(part, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600) // it holds all that the agent was told
		if err != nil {
			return err
		}
		defer file.Close()
		size, err = c.exportTo(ctx, key, file)
		if err != nil {
			return err
		}
		return file.Sync()
	})
	if err != nil {
		return err
	}
	if err := os.Rename(part, path); err != nil {
		return err
	}
	fmt.Printf("%s: %d bytes\n", path, size)
	return nil
}

func (c *Client) exportTo(ctx context.Context, key *pb.AgentKey, file io.Writer) (size int, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // a stream that is left before its end goes on otherwise
	stream, err := c.Agents.ExportAgent(c.named(ctx, newID()), &pb.ExportAgentRequest{Key: key})
	if err != nil {
		return 0, failure(err)
	}
	for {
		piece, err := stream.Recv()
		if err == io.EOF {
			return size, nil
		}
		if err != nil {
			return size, failure(err)
		}
		if _, err := file.Write(piece.Chunk); err != nil {
			return size, err
		}
		size += len(piece.Chunk)
	}
}

// load makes an agent of such a file; without a name it has that of the file.
func (c *Client) load(ctx context.Context, path, name string) error {
	var made *pb.Agent
	err := retrying(ctx, func() error {
		file, err := os.Open(path)
		if err != nil {
			return err
		}
		defer file.Close()
		made, err = c.importFrom(ctx, file, name)
		return err
	})
	if err != nil {
		return err
	}
	fmt.Printf("%s on %s: %d tokens, %d with KV\n", made.Key.AgentId, made.Key.ModelId, made.Tokens, made.WarmTokens)
	return nil
}

func (c *Client) importFrom(ctx context.Context, file io.Reader, name string) (*pb.Agent, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.Agents.ImportAgent(c.named(ctx, newID()))
	if err != nil {
		return nil, failure(err)
	}
	key := &pb.AgentKey{AgentId: name}
	err = stream.Send(&pb.ImportAgentRequest{Part: &pb.ImportAgentRequest_Key{Key: key}})
	for err == nil {
		chunk := make([]byte, chunkBytes)
		read, problem := io.ReadFull(file, chunk)
		if read > 0 {
			err = stream.Send(&pb.ImportAgentRequest{Part: &pb.ImportAgentRequest_Chunk{Chunk: chunk[:read]}})
		}
		if problem == io.EOF || errors.Is(problem, io.ErrUnexpectedEOF) {
			break
		}
		if problem != nil {
			return nil, problem
		}
	}
	made, err := stream.CloseAndRecv() // where Send failed, this says why
	return made.GetAgent(), failure(err)
}
