{{- define "leaseway.frontPod" -}}
{{- $front := .Values.front }}
terminationGracePeriodSeconds: 45
containers:
  - name: front
    image: {{ include "leaseway.image" . }}
    imagePullPolicy: {{ .Values.image.pullPolicy }}
    args:
      - mcp-front
      - --control-plane={{ include "leaseway.fullname" . }}-control-plane.{{ .Release.Namespace }}.svc:{{ .Values.controlPlane.port }}
      - --listen={{ include "leaseway.anyAddress" . }}:{{ $front.port }}
      - --log-format=json
      {{- include "leaseway.frontArgs" . | nindent 6 }}
    env:
      {{- include "leaseway.keyEnv" . | nindent 6 }}
      {{- with $front.env }}{{ toYaml . | nindent 6 }}{{ end }}
    {{- with $front.envFrom }}
    envFrom: {{- toYaml . | nindent 6 }}
    {{- end }}
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
    resources: {{- toYaml $front.compute | nindent 6 }}
    securityContext:
      {{- include "leaseway.containerSecurity" . | nindent 6 }}
    volumeMounts:
      - { name: tmp, mountPath: /tmp }
      {{- with include "leaseway.tlsMount" . }}{{ . | nindent 6 }}{{ end }}
      {{- with $front.volumeMounts }}{{ toYaml . | nindent 6 }}{{ end }}
volumes:
  - name: tmp
    {{- toYaml ($front.tmp | default (dict "emptyDir" dict)) | nindent 4 }}
  {{- with include "leaseway.tlsVolume" . }}{{ . | nindent 2 }}{{ end }}
  {{- with $front.volumes }}{{ toYaml . | nindent 2 }}{{ end }}
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
