{{- define "leaseway.frontPod" -}}
{{- $front := .Values.front }}
terminationGracePeriodSeconds: 45
containers:
  - name: front
    image: {{ include "leaseway.image" . | quote }}
    args:
      - mcp-front
      - --control-plane={{ include "leaseway.fullname" . }}-control-plane.{{ .Release.Namespace }}.svc:{{ .Values.controlPlane.port }}
      - --listen={{ include "leaseway.anyAddress" . }}:{{ $front.port }}
      - --log-format=json
      {{- include "leaseway.frontArgs" . | nindent 6 }}
    ports:
      - { name: http, containerPort: {{ $front.port }} }
    # The system accepts connections for a process that hangs, so a request asks.
    startupProbe:
      {{- include "leaseway.frontProbe" . | nindent 6 }}
      periodSeconds: 1
      failureThreshold: 30
    livenessProbe:
      {{- include "leaseway.frontProbe" . | nindent 6 }}
      periodSeconds: 10
      timeoutSeconds: 5
    readinessProbe:
      {{- include "leaseway.frontProbe" . | nindent 6 }}
      periodSeconds: 2
      timeoutSeconds: 2
    lifecycle:
      # Requests still arrive until the endpoint's removal has spread.
      preStop:
        exec: { command: [sleep, "5"] }
{{- end }}

{{- /* The kubelet has no certificate for a front whose clients need one. */ -}}
{{- define "leaseway.frontProbe" -}}
{{- $names := list }}
{{- range .Values.front.env }}{{ $names = append $names .name }}{{ end }}
{{- if has "LEASEWAY_TLS_CLIENT_CA" $names -}}
tcpSocket: { port: http }
{{- else -}}
httpGet: { path: /healthz, port: http, scheme: {{ ternary "HTTPS" "HTTP" (not (empty (include "leaseway.tlsOn" .))) }} }
{{- end -}}
{{- end }}
