// A gateway as small as mcp-go allows: tools of one stdio server over streamable HTTP, without
// sessions. Usage: mcp-go-gateway PORT COMMAND [ARGUMENT]...
package main

import (
	"context"
	"log"
	"net/http"
	"os"

	"github.com/mark3labs/mcp-go/client"
	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"
)

func main() {
	ctx := context.Background()
	upstream, err := client.NewStdioMCPClient(os.Args[2], nil, os.Args[3:]...)
	if err != nil {
		log.Fatal(err)
	}
	hello := mcp.InitializeRequest{}
	hello.Params.ProtocolVersion = mcp.LATEST_PROTOCOL_VERSION
	hello.Params.ClientInfo = mcp.Implementation{Name: "mcp-go-gateway", Version: "1"}
	if _, err := upstream.Initialize(ctx, hello); err != nil {
		log.Fatal(err)
	}
	listed, err := upstream.ListTools(ctx, mcp.ListToolsRequest{})
	if err != nil {
		log.Fatal(err)
	}
	gateway := server.NewMCPServer("mcp-go-gateway", "1")
	for _, tool := range listed.Tools {
		gateway.AddTool(tool, func(ctx context.Context, call mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return upstream.CallTool(ctx, call)
		})
	}
	http.Handle("/mcp", server.NewStreamableHTTPServer(gateway, server.WithStateLess(true)))
	log.Fatal(http.ListenAndServe("127.0.0.1:"+os.Args[1], nil))
}
