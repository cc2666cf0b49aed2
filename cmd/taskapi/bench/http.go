package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

// A target is a server to drive, and the requests to send it.
type target struct {
	socket   string
	token    string // of a task
	requests [][]byte
	pid      int // of the server, whose CPU time is measured; 0 for none
}

type reply struct {
	status      int
	contentType string
	body        []byte
}

// get returns a complete request. Every server under test gets the very same bytes.
func get(path, token string) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "GET %s HTTP/1.1\r\nHost: localhost\r\nUser-Agent: bench\r\nX-Nomad-Token: %s\r\n\r\n", path, token)
	return b.Bytes()
}

func exchange(socket string, request []byte) (reply, error) {
	conn, err := net.Dial("unix", socket)
	if err != nil {
		return reply{}, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return reply{}, err
	}
	if _, err := conn.Write(request); err != nil {
		return reply{}, err
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return reply{}, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return reply{status: resp.StatusCode, contentType: resp.Header.Get("Content-Type"), body: body}, err
}
