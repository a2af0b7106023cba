{{- define "leaseway.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{- define "leaseway.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "leaseway.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "leaseway.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end }}

{{- define "leaseway.selector" -}}
app.kubernetes.io/name: {{ include "leaseway.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "leaseway.labels" -}}
{{ include "leaseway.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "leaseway.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* The image with the clients of PostgreSQL and of object stores. A tag of your own is used as it is. */}}
{{- define "leaseway.storesImage" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default (printf "%s-stores" .Chart.AppVersion) }}
{{- end }}

{{/* The address on which the processes of a pod listen. */}}
{{- define "leaseway.anyAddress" -}}
{{- ternary "[::]" "0.0.0.0" (eq .Values.ipFamily "IPv6") -}}
{{- end }}

{{- define "leaseway.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (printf "%s-control-plane" (include "leaseway.fullname" .)) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end }}

{{- define "leaseway.keySecret" -}}
{{- .Values.key.existingSecret | default (printf "%s-key" (include "leaseway.fullname" .)) -}}
{{- end }}

{{- define "leaseway.keyEnv" -}}
- name: LEASEWAY_KEY
  valueFrom:
    secretKeyRef:
      name: {{ include "leaseway.keySecret" . }}
      key: {{ .Values.key.secretKey }}
{{- include "leaseway.tlsEnv" . }}
{{- with .Values.telemetry.otlpEndpoint }}
- name: OTEL_EXPORTER_OTLP_ENDPOINT
  value: {{ . | quote }}
{{- end }}
{{- with .Values.telemetry.otlpProtocol }}
- name: OTEL_EXPORTER_OTLP_PROTOCOL
  value: {{ . | quote }}
{{- end }}
{{- with .Values.telemetry.otlpHeaders }}
{{- if .existingSecret }}
- name: OTEL_EXPORTER_OTLP_HEADERS
  valueFrom:
    secretKeyRef:
      name: {{ .existingSecret }}
      key: {{ .secretKey }}
{{- end }}
{{- end }}
{{- end }}

{{- define "leaseway.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile: { type: RuntimeDefault }
{{- end }}

{{- define "leaseway.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: { drop: [ALL] }
{{- end }}

{{- define "leaseway.spread" -}}
topologySpreadConstraints:
  {{- range list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
  - maxSkew: 1
    topologyKey: {{ . }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- $.selector | nindent 8 }}
  {{- end }}
{{- end }}

{{- /* The values of a pool: its own over the defaults. */ -}}
{{- define "leaseway.pool" -}}
{{- mustMergeOverwrite (deepCopy .defaults) (deepCopy (.pool | default dict)) | toYaml -}}
{{- end }}

{{- /* TLS: a kubernetes.io/tls Secret with ca.crt, from cert-manager or your own. */ -}}
{{- define "leaseway.tlsOn" -}}
{{- if or .Values.tls.certManager.enabled .Values.tls.existingSecret }}yes{{ end -}}
{{- end }}

{{- define "leaseway.tlsSecret" -}}
{{- .Values.tls.existingSecret | default (printf "%s-tls" (include "leaseway.fullname" .)) -}}
{{- end }}

{{- define "leaseway.tlsName" -}}
{{- printf "%s-control-plane.%s.svc" (include "leaseway.fullname" .) .Release.Namespace -}}
{{- end }}

{{- define "leaseway.tlsEnv" -}}
{{- if include "leaseway.tlsOn" . }}
{{- range $name, $file := dict "CERT" "tls.crt" "KEY" "tls.key" "CA" "ca.crt" }}
- { name: LEASEWAY_TLS_{{ $name }}, value: /run/tls/{{ $file }} }
{{- end }}
- { name: LEASEWAY_TLS_NAME, value: {{ include "leaseway.tlsName" . }} }
{{- end }}
{{- end }}

{{- define "leaseway.tlsMount" -}}
{{- if include "leaseway.tlsOn" . -}}
- { name: tls, mountPath: /run/tls, readOnly: true }
{{- end -}}
{{- end }}

{{- define "leaseway.tlsVolume" -}}
{{- if include "leaseway.tlsOn" . -}}
- name: tls
  secret: { secretName: {{ include "leaseway.tlsSecret" . }}, defaultMode: 288 }
{{- end -}}
{{- end }}

{{- /* The probe of a process; with TLS a TCP probe, because the kubelet's gRPC probes do not support TLS. */ -}}
{{- define "leaseway.probe" -}}
{{- if .root | include "leaseway.tlsOn" -}}
tcpSocket: { port: {{ .port }} }
{{- else -}}
grpc: { port: {{ .port }}{{ with .service }}, service: {{ . }}{{ end }} }
{{- end -}}
{{- end }}

{{/* The options of a front, in a process of its own or in a worker's. */}}
{{- define "leaseway.frontArgs" -}}
{{- $name := printf "%s-front" (include "leaseway.fullname" .) -}}
{{- $front := .Values.front -}}
- --tenant={{ $front.tenant }}
{{- range concat (list $name (printf "%s.%s" $name .Release.Namespace) (printf "%s.%s.svc" $name .Release.Namespace)) $front.hosts }}
- --allow-host={{ . }}
{{- end }}
{{- range $front.origins }}
- --allow-origin={{ . }}
{{- end }}
{{- range $front.extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end }}
