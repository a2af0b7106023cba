{{- define "leaseway.workerPod" -}}
{{- $root := .root }}
{{- $w := .w }}
{{- $pool := .pool }}
{{- $front := and $root.Values.front.enabled $root.Values.front.inWorkers }}
{{- if $w.images }}
serviceAccountName: {{ include "leaseway.fullname" $root }}-images
{{- end }}
# Servers are third-party code: mount no API token that they could read.
automountServiceAccountToken: {{ $w.images }}
{{- if $front }}
# Requests of MCP clients get 30 s to finish before the worker's own calls do.
terminationGracePeriodSeconds: {{ add $w.terminationGracePeriodSeconds 40 }}
{{- else }}
terminationGracePeriodSeconds: {{ $w.terminationGracePeriodSeconds }}
{{- end }}
containers:
  - name: worker
    image: {{ $w.image | default (include (ternary "leaseway.storesImage" "leaseway.image" (hasPrefix "s3://" ($w.audit.sink | default ""))) $root) | quote }}
    args:
      - worker
      - --control-plane={{ include "leaseway.fullname" $root }}-control-plane.{{ $root.Release.Namespace }}.svc:{{ $root.Values.controlPlane.port }}
      - --listen={{ include "leaseway.anyAddress" $root }}:{{ $w.port }}
      - --advertise=[$(POD_IP)]:{{ $w.port }}
      - --id=$(POD_NAME)
      - --metrics={{ include "leaseway.anyAddress" $root }}:{{ $w.metricsPort }}
      - --capacity={{ $w.capacity }}
      - --log-format=json
      - --label=pool={{ $pool }}
      {{- range $key, $value := $w.labels }}
      - {{ printf "--label=%s=%s" $key $value | quote }}
      {{- end }}
      {{- range $w.servers }}
      - {{ printf "--servers=%s" . | quote }}
      {{- end }}
      {{- if $front }}
      - --mcp={{ include "leaseway.anyAddress" $root }}:{{ $root.Values.front.port }}
      {{- include "leaseway.frontArgs" $root | nindent 6 }}
      {{- end }}
      {{- if $w.audit.sink }}
      - --audit=/var/lib/leaseway/audit
      - {{ printf "--audit-sink=%s" $w.audit.sink | quote }}
      - --audit-policy={{ $w.audit.policy }}
      - {{ printf "--audit-space=%s" $w.audit.space | quote }}
      {{- end }}
      {{- range $w.extraArgs }}
      - {{ . | quote }}
      {{- end }}
    env:
      - name: POD_IP
        valueFrom: { fieldRef: { fieldPath: status.podIP } }
      - name: POD_NAME
        valueFrom: { fieldRef: { fieldPath: metadata.name } }
      {{- if $w.images }}
      - { name: LEASEWAY_CONTAINER_ENGINE, value: kubernetes }
      {{- range $name, $field := dict "NAME" "metadata.name" "UID" "metadata.uid" "NAMESPACE" "metadata.namespace" }}
      - name: LEASEWAY_POD_{{ $name }}
        valueFrom: { fieldRef: { fieldPath: {{ $field }} } }
      {{- end }}
      {{- end }}
    {{- with $w.audit.credentials }}
    envFrom:
      - secretRef: { name: {{ . | quote }} }
    {{- end }}
    ports:
      - { name: grpc, containerPort: {{ $w.port }} }
      - { name: metrics, containerPort: {{ $w.metricsPort }} }
      {{- if $front }}
      - { name: mcp, containerPort: {{ $root.Values.front.port }} }
    lifecycle:
      # Requests still arrive until the endpoint's removal has spread.
      preStop:
        exec: { command: [sleep, "5"] }
      {{- end }}
    # Live: its event loop runs. Ready: it has joined and has the registry.
    startupProbe:
      {{- include "leaseway.probe" (dict "root" $root "port" $w.port "service" "leaseway.live") | nindent 6 }}
      periodSeconds: 1
      failureThreshold: 30
    livenessProbe:
      {{- include "leaseway.probe" (dict "root" $root "port" $w.port "service" "leaseway.live") | nindent 6 }}
      periodSeconds: 10
      timeoutSeconds: 5
    readinessProbe:
      {{- include "leaseway.probe" (dict "root" $root "port" $w.port "service" "") | nindent 6 }}
      periodSeconds: 2
      timeoutSeconds: 2
    volumeMounts:
      {{- if $w.audit.sink }}
      - { name: audit, mountPath: /var/lib/leaseway }
      {{- end }}
      {{- /* Names of Secrets may be longer than those of volumes, and have dots. */}}
      {{- range $number, $secret := $w.secretFiles }}
      - { name: "secret-{{ $number }}", mountPath: "/run/secrets/{{ $secret }}", readOnly: true }
      {{- end }}
volumes:
  {{- if $w.audit.sink }}
  - name: audit
    {{- toYaml ($w.audit.volume | default (dict "emptyDir" dict)) | nindent 4 }}
  {{- end }}
  {{- range $number, $secret := $w.secretFiles }}
  - name: secret-{{ $number }}
    secret: { secretName: {{ $secret | quote }}, defaultMode: 288 }
  {{- end }}
{{- end }}
