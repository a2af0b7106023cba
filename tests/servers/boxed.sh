# A stdio server for a container that has only a shell. It speaks 2025-11-25; its tool `next`
# counts, `look` reports its environment: a variable, its network interfaces, whether it can write.
count=0
while IFS= read -r line; do
  case $line in *'"id":'*) ;; *) continue ;; esac
  id=${line#*'"id":'}
  id=${id%%[!0-9]*}
  result='"error":{"code":-32601,"message":"Method not found"}'
  case $line in
    *'"method":"initialize"'*)
      result='"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"boxed","version":"1"}}' ;;
    *'"method":"tools/list"'*)
      result='"result":{"tools":[{"name":"next","inputSchema":{"type":"object"}},{"name":"look","inputSchema":{"type":"object"}}]}' ;;
    *'"name":"next"'*)
      count=$((count + 1))
      result='"result":{"content":[{"type":"text","text":"'$count'"}]}' ;;
    *'"name":"look"'*)
      writes=no; { true > /probe; } 2>/dev/null && writes=yes
      scratch=no; { true > /tmp/probe; } 2>/dev/null && scratch=yes
      interfaces=; for each in /sys/class/net/*; do interfaces="$interfaces ${each##*/}"; done
      text="variable=$GREETING argument=$1 writes=$writes scratch=$scratch interfaces=$interfaces"
      result='"result":{"content":[{"type":"text","text":"'$text'"}]}' ;;
    *'"method":"ping"'*)
      result='"result":{}' ;;
  esac
  printf '{"jsonrpc":"2.0","id":%s,%s}\n' "$id" "$result"
done
echo "boxed: no more input" >&2
