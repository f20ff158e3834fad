package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"

	pb "example.com/agentmem-example/agentmem/v1"
)

// patience is for how long a call is made again.
const patience = 30 * time.Second

// Client has the services that this program calls, by one connection.
type Client struct {
	Inference pb.InferenceServiceClient
	Agents    pb.AgentServiceClient
	apiKey    string
	conn      *grpc.ClientConn
}

// Connect reads the variables that Agentmem's command line reads, too. It does not wait for the connection.
func Connect() (*Client, error) {
	address := os.Getenv("AGENTMEM_ADDRESS")
	if address == "" {
		address = "127.0.0.1:50051"
	}
	security, err := security()
	if err != nil {
		return nil, err
	}
	// A gateway that has vanished is noticed.
	pings := grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 20 * time.Second, Timeout: 10 * time.Second})
	conn, err := grpc.Dial(address, security, pings) // grpc.NewClient since grpc-go 1.63
	if err != nil {
		return nil, err
	}
	return &Client{
		Inference: pb.NewInferenceServiceClient(conn),
		Agents:    pb.NewAgentServiceClient(conn),
		apiKey:    os.Getenv("AGENTMEM_API_KEY"),
		conn:      conn,
	}, nil
}

// security is TLS where a variable asks for it, with the system's certificate authorities unless AGENTMEM_CA names one.
func security() (grpc.DialOption, error) {
	ca, cert, key := os.Getenv("AGENTMEM_CA"), os.Getenv("AGENTMEM_CLIENT_CERT"), os.Getenv("AGENTMEM_CLIENT_KEY")
	if os.Getenv("AGENTMEM_TLS") == "" && ca == "" && cert == "" && key == "" {
		return grpc.WithInsecure(), nil // since grpc-go 1.34 also WithTransportCredentials(insecure.NewCredentials())
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if ca != "" {
		pem, err := os.ReadFile(ca)
		if err != nil {
			return nil, err
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("no certificate in %s", ca)
		}
	}
	if cert != "" {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return grpc.WithTransportCredentials(credentials.NewTLS(config)), nil
}

// Close ends the connection.
func (c *Client) Close() error { return c.conn.Close() }

// Named adds what goes with each call: the key, and an id by which the gateway's logs know the call.
func (c *Client) named(ctx context.Context, id string) context.Context {
	ctx = metadata.AppendToOutgoingContext(ctx, "x-request-id", id)
	if c.apiKey != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+c.apiKey)
	}
	return ctx
}

// retrying calls attempt until it succeeds, again after as long as the gateway says, or after a second where the
// connection fails. It returns the last failure, or errInterrupted where ctx has ended.
func retrying(ctx context.Context, attempt func() error) error {
	for ends := time.Now().Add(patience); ; {
		err := attempt()
		if err != nil && ctx.Err() != nil {
			return errInterrupted
		}
		var failed *Error
		if !errors.As(err, &failed) || failed.RetryAfter == nil {
			return err
		}
		delay := *failed.RetryAfter
		if delay < 100*time.Millisecond {
			delay = 100 * time.Millisecond
		}
		if time.Now().Add(delay).After(ends) {
			return err
		}
		fmt.Fprintf(os.Stderr, "%v; trying again\n", failed)
		select {
		case <-time.After(delay):
		case <-ctx.Done():
			return errInterrupted
		}
	}
}
