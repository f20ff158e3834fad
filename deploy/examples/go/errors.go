package main

import (
	"fmt"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Error is a call that failed: its status, and the details that the gateway sends with it.
type Error struct {
	Code    codes.Code
	Message string
	// Violations are the fields of the request that are wrong, with INVALID_ARGUMENT.
	Violations []*errdetails.BadRequest_FieldViolation
	// Missing is what there is not, with NOT_FOUND: a type, such as "agent", and a name.
	Missing *errdetails.ResourceInfo
	// RetryAfter is when the call may be made again; nil where that would not help.
	RetryAfter *time.Duration
}

// errInterrupted is a call that Ctrl-C has ended.
var errInterrupted = &Error{Code: codes.Canceled, Message: "interrupted"}

// Failure is what a call's err says, nil for nil.
func failure(err error) error {
	if err == nil {
		return nil
	}
	told, ok := status.FromError(err)
	if !ok {
		return err
	}
	failed := &Error{Code: told.Code(), Message: told.Message()}
	for _, detail := range told.Details() {
		switch detail := detail.(type) {
		case *errdetails.BadRequest:
			failed.Violations = detail.FieldViolations
		case *errdetails.ResourceInfo:
			failed.Missing = detail
		case *errdetails.RetryInfo:
			delay := time.Duration(detail.RetryDelay.GetSeconds())*time.Second + time.Duration(detail.RetryDelay.GetNanos())
			failed.RetryAfter = &delay
		}
	}
	if isUnreachable(told) {
		delay := time.Second
		failed.RetryAfter = &delay
	}
	return failed
}

// isUnreachable is whether the connection failed, and it is not the gateway that says so: what that says has details.
func isUnreachable(told *status.Status) bool {
	switch told.Code() {
	case codes.Unavailable, codes.Internal, codes.Unknown, codes.Canceled:
		return len(told.Proto().Details) == 0
	}
	return false
}

// Error is the failure in one line.
func (e *Error) Error() string {
	told := &strings.Builder{}
	fmt.Fprintf(told, "%s: %s", code.Code(e.Code), e.Message)
	for _, violation := range e.Violations {
		fmt.Fprintf(told, " (field %s)", violation.Field)
	}
	if e.Missing != nil {
		fmt.Fprintf(told, " (%s %q)", e.Missing.ResourceType, e.Missing.ResourceName)
	}
	if e.RetryAfter != nil {
		fmt.Fprintf(told, " (try again in %g s)", e.RetryAfter.Seconds())
	}
	return told.String()
}
