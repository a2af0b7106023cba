# The smallest stdio server: `sh tiny.sh`. It speaks 2025-11-25 and has one tool, `hello`, that
# answers every call with the first argument of this script. A request's id is a number.
while IFS= read -r line; do
  case $line in *'"id":'*) ;; *) continue ;; esac
  id=${line#*'"id":'}
  id=${id%%[!0-9]*}
  result='"error":{"code":-32601,"message":"Method not found"}'
  case $line in
    *'"method":"initialize"'*)
      result='"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"tiny","version":"1"}}' ;;
    *'"method":"tools/list"'*)
      result='"result":{"tools":[{"name":"hello","inputSchema":{"type":"object"}}]}' ;;
    *'"method":"tools/call"'*)
      result='"result":{"content":[{"type":"text","text":"'$1'"}]}' ;;
    *'"method":"ping"'*)
      result='"result":{}' ;;
  esac
  printf '{"jsonrpc":"2.0","id":%s,%s}\n' "$id" "$result"
done
