package exec

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"taskapi/allocrunner/interfaces"
	"taskapi/handlers/apierror"
	"taskapi/handlers/internal/route"
	"taskapi/handlers/internal/transport"

	"github.com/gorilla/websocket"
	"github.com/hashicorp/nomad/api"
)

const (
	// maxExecFrame bounds a message from the client. The SDK sends 2 KiB of input in one; a web page sends a pasted
	// text in one.
	maxExecFrame = 256 << 10
	// execOutput is how much output one message carries at most: half of what a pipe holds.
	execOutput = 32 << 10
	// execHeartbeat is how often an empty message is sent, as the SDK does. Its write fails when the client has gone.
	execHeartbeat = 10 * time.Second
	// greetingTimeout is for the first message of a client that has announced one.
	greetingTimeout = 10 * time.Second
	// farewellTimeout is for the last words to a client whose session is cut.
	farewellTimeout = time.Second
	// maxReason is the longest reason that a close frame can have, RFC 6455 section 5.5.
	maxReason = 123
)

// relay carries a command's input and output over a WebSocket, in the frames of the SDK: api.ExecStreamingInput and
// ExecStreamingOutput.
type relay struct {
	raw     *transport.Conn
	token   string // that the client's first message must have, if it has announced one; empty for none
	session interfaces.ExecSession
	conn    *websocket.Conn
	over    func() // ends the session: the command has ended, or the client has gone

	writing chan struct{} // holds one element during the upgrade and during each message
}

// checkHandshake refuses a request that the upgrade would refuse, before anything is started. RFC 6455, section 4.2.1.
func checkHandshake(r *http.Request) error {
	key, err := base64.StdEncoding.DecodeString(r.Header.Get("Sec-Websocket-Key"))
	switch {
	case !websocket.IsWebSocketUpgrade(r):
		return route.Invalid("this is a WebSocket: send Connection: Upgrade and Upgrade: websocket")
	case r.Header.Get("Sec-Websocket-Version") != "13":
		return route.Invalid("Sec-WebSocket-Version must be 13, not %s", route.Clip(r.Header.Get("Sec-Websocket-Version")))
	case err != nil || len(key) != 16:
		return route.Invalid("Sec-WebSocket-Key must be 16 bytes in base64")
	}
	return nil
}

// serve upgrades the connection and returns when the command has ended, or the client has gone and the command has been
// ended.
func (x *relay) serve(w http.ResponseWriter, r *http.Request, session interfaces.ExecSession) (err error) {
	x.raw.Patient = true // who pages through the output takes as long as they like
	upgrader := websocket.Upgrader{Error: func(http.ResponseWriter, *http.Request, int, error) {}}
	x.writing <- struct{}{}
	x.session = session
	x.conn, err = upgrader.Upgrade(w, r, nil)
	<-x.writing
	if err != nil {
		return route.Invalid("the WebSocket can't be opened: %v", err)
	}
	x.conn.SetReadLimit(maxExecFrame)

	var work sync.WaitGroup
	defer work.Wait()
	over := make(chan struct{})
	x.over = sync.OnceFunc(func() { close(over) })
	work.Go(func() {
		<-over
		_ = session.Close() // nothing depends on how its files close
		_ = x.conn.Close()  // receive ends
	})
	work.Go(func() {
		defer x.over()
		if err := x.receive(); err != nil {
			x.close(err)
		}
	})
	work.Go(func() { x.beat(over) })
	x.finish()
	x.over()
	return nil
}

// finish sends the output to its end, and then how the command ended.
func (x *relay) finish() {
	var outputs sync.WaitGroup
	outputs.Go(func() { x.forward("stdout", x.session.Stdout()) })
	outputs.Go(func() { x.forward("stderr", x.session.Stderr()) })
	outputs.Wait()
	exit, err := x.session.Wait()
	switch {
	case err != nil:
		err = apierror.Reword(err, apierror.TaskNotRunning, apierror.Conflict, "the task has ended, and with it the command")
	case exit.Err != "":
		err = apierror.New(apierror.Unavailable, "how the command ended is not known")
	default:
		err = x.send([]byte(`{"exited":true,"result":{"exit_code":` + strconv.Itoa(exit.ExitCode) + `}}`))
	}
	x.close(err)
}

// forward sends output as it comes. When the client takes no more, forward reads and drops the rest, until the command
// has been ended.
func (x *relay) forward(stream string, from io.Reader) {
	head := `{"` + stream + `":{"data":"`
	buffer, message := make([]byte, execOutput), []byte(nil)
	var err error
	for {
		n, end := from.Read(buffer)
		if n > 0 && err == nil {
			message = base64.StdEncoding.AppendEncode(append(message[:0], head...), buffer[:n])
			message = append(message, `"}}`...)
			err = x.send(message)
		}
		if err != nil {
			x.over()
		}
		if end != nil {
			break
		}
	}
	if err == nil {
		_ = x.send([]byte(`{"` + stream + `":{"close":true}}`)) // a client that has gone shows when it is read
	}
}

func (x *relay) send(message []byte) error {
	x.writing <- struct{}{}
	defer func() { <-x.writing }()
	return x.conn.WriteMessage(websocket.TextMessage, message)
}

func (x *relay) beat(over <-chan struct{}) {
	tick := time.NewTicker(execHeartbeat)
	defer tick.Stop()
	for {
		select {
		case <-over:
			return
		case <-tick.C:
		}
		select {
		case x.writing <- struct{}{}:
		default: // a message is on its way
			continue
		}
		err := x.conn.WriteMessage(websocket.TextMessage, []byte("{}"))
		<-x.writing
		if err != nil {
			x.over() // receive may be waiting for the command to read
		}
	}
}

// close sends a close frame with the reason for which the session ends; nil when the command has ended. After another
// close frame it does nothing.
func (x *relay) close(err error) {
	status, reason := closing(err)
	deadline := time.Now().Add(farewellTimeout)
	message := websocket.FormatCloseMessage(status, reason)
	_ = x.conn.WriteControl(websocket.CloseMessage, message, deadline) // the client may have gone
}

// closing returns the close frame for an error: with 1008 for an error of the client, with 1011 for any other, as in
// Nomad.
func closing(err error) (status int, reason string) {
	if err == nil {
		return websocket.CloseNormalClosure, ""
	}
	known := apierror.Of(err)
	status = websocket.CloseInternalServerErr
	if known.Kind.Status() < http.StatusInternalServerError {
		status = websocket.ClosePolicyViolation
	}
	reason = known.Message
	return status, strings.ToValidUTF8(reason[:min(len(reason), maxReason)], "") // cut between characters
}

// receive passes the client's messages to the command until the client has gone, or has sent an invalid message.
func (x *relay) receive() error {
	if x.token != "" {
		if err := x.greeting(); err != nil {
			return err
		}
	}
	for {
		_, message, err := x.conn.ReadMessage()
		if route.Denied(err) {
			x.farewell(err)
		}
		if err != nil {
			return nil //nolint:nilerr // the client has gone, or the library has said that the message was too long
		}
		var in api.ExecStreamingInput
		if err := json.Unmarshal(message, &in); err != nil {
			return route.Invalid("Failed to decode frame: %v", err)
		}
		if err := x.handle(in); err != nil {
			return err
		}
	}
}

// handle passes one message to the command. Input that the command does not read any more is dropped, as by a pipe.
func (x *relay) handle(in api.ExecStreamingInput) error {
	if in.Stdin != nil {
		stdin := x.session.Stdin()
		_, _ = stdin.Write(in.Stdin.Data)
		if in.Stdin.Close {
			_ = stdin.Close()
		}
	}
	if size := in.TTYSize; size != nil {
		if size.Height < 0 || size.Width < 0 || size.Height > math.MaxUint16 || size.Width > math.MaxUint16 {
			return route.Invalid("a terminal of %d lines and %d columns can't be: each must be from 1 to %d",
				size.Height, size.Width, math.MaxUint16)
		}
		if size.Height > 0 && size.Width > 0 { // else the client does not know its size
			_ = x.session.Resize(uint16(size.Height), uint16(size.Width)) // the terminal may be gone
		}
	}
	return nil
}

// greeting reads the first message of a client that has announced one with ws_handshake: a version, and a token that
// must be the request's.
func (x *relay) greeting() error {
	_ = x.conn.SetReadDeadline(time.Now().Add(greetingTimeout)) // fails when it is closed, which reading shows
	var hello struct {
		Version   int    `json:"version"`
		AuthToken string `json:"auth_token"`
	}
	if err := x.conn.ReadJSON(&hello); err != nil {
		return route.Invalid("Failed to decode handshake: %v", err)
	}
	switch {
	case hello.Version != 1:
		return route.Invalid("unexpected handshake value: %d", hello.Version)
	case hello.AuthToken != "" && hello.AuthToken != x.token:
		return route.Invalid("handshake auth token mismatched auth header token")
	}
	return x.conn.SetReadDeadline(time.Time{})
}

// farewell sends a close frame with the reason for which a session is cut, also when the token is no longer valid. It
// gives up after farewellTimeout, when the client does not take the message before.
func (x *relay) farewell(cause error) {
	select {
	case x.writing <- struct{}{}:
	case <-time.After(farewellTimeout):
		return
	}
	defer func() { <-x.writing }()
	if x.conn == nil {
		return
	}
	reason, status := "taskapi stops", websocket.CloseGoingAway
	if route.Denied(cause) {
		reason, status = "the token is not valid any more", websocket.ClosePolicyViolation
	}
	frame := []byte{0x80 | websocket.CloseMessage, byte(2 + len(reason))}
	frame = append(binary.BigEndian.AppendUint16(frame, uint16(status)), reason...)
	_ = x.raw.SetWriteDeadline(time.Now().Add(farewellTimeout)) // fails when it is closed, as the write does
	_, _ = x.raw.Conn.Write(frame)
}
