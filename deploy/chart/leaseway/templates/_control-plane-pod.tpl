{{- define "leaseway.controlPlanePod" -}}
{{- $name := printf "%s-control-plane" (include "leaseway.fullname" .) }}
{{- $cp := .Values.controlPlane }}
{{- $files := or $cp.config.system $cp.config.tenants }}
{{- $volume := $cp.store.volume }}
{{- $claim := default (printf "%s-data" $name) $volume.existingClaim }}
serviceAccountName: {{ include "leaseway.serviceAccount" . | quote }}
automountServiceAccountToken: true
terminationGracePeriodSeconds: 30
containers:
  - name: control-plane
    image: {{ include (ternary "leaseway.storesImage" "leaseway.image" (not (empty $cp.store.existingSecret))) . | quote }}
    args:
      - control-plane
      - --listen={{ include "leaseway.anyAddress" . }}:{{ $cp.port }}
      - --metrics={{ include "leaseway.anyAddress" . }}:{{ $cp.metricsPort }}
      - --log-format=json
      {{- if $cp.config.system }}
      - --config=system=/etc/leaseway/system.yaml
      {{- end }}
      {{- if $cp.config.tenants }}
      - --config=domain=/etc/leaseway/tenants
      {{- end }}
      {{- if $cp.resources.enabled }}
      - --config=kubernetes={{ .Release.Namespace }}
      {{- end }}
      - --leader-lease={{ .Release.Namespace }}/{{ $name }}
      - --leader-lease-duration={{ $cp.leaseDuration }}
      - --advertise=[$(POD_IP)]:{{ $cp.port }}
      - --expect-workers={{ $cp.expectWorkers }}
      {{- if $volume.enabled }}
      - --data=/var/lib/leaseway/store
      {{- end }}
      {{- if $cp.store.existingSecret }}
      - --store=file:/run/secrets/leaseway-store/{{ $cp.store.secretKey }}
      {{- end }}
      {{- range $cp.extraArgs }}
      - {{ . | quote }}
      {{- end }}
    env:
      # All replicas need the same key, to verify the state that workers return.
      - name: LEASEWAY_SEAL_KEY
        valueFrom:
          secretKeyRef:
            name: {{ include "leaseway.keySecret" . | quote }}
            key: {{ .Values.key.sealKey | quote }}
      - name: POD_IP
        valueFrom: { fieldRef: { fieldPath: status.podIP } }
    ports:
      - { name: grpc, containerPort: {{ $cp.port }} }
      - { name: metrics, containerPort: {{ $cp.metricsPort }} }
    # Live: its event loop runs. Ready: it leads, or knows the leader.
    startupProbe:
      {{- include "leaseway.probe" (dict "root" . "port" $cp.port "service" "leaseway.live") | nindent 6 }}
      periodSeconds: 1
      failureThreshold: 30
    livenessProbe:
      {{- include "leaseway.probe" (dict "root" . "port" $cp.port "service" "leaseway.live") | nindent 6 }}
      periodSeconds: 10
      timeoutSeconds: 5
    readinessProbe:
      {{- include "leaseway.probe" (dict "root" . "port" $cp.port "service" "") | nindent 6 }}
      periodSeconds: 2
      timeoutSeconds: 2
    volumeMounts:
      {{- if $volume.enabled }}
      - { name: data, mountPath: /var/lib/leaseway }
      {{- end }}
      {{- if $cp.store.existingSecret }}
      - { name: store, mountPath: /run/secrets/leaseway-store, readOnly: true }
      {{- end }}
      {{- if $files }}
      # Mount the folder: files mounted with `subPath` do not follow changes of a ConfigMap.
      - { name: config, mountPath: /etc/leaseway, readOnly: true }
      {{- end }}
volumes:
  {{- if $volume.enabled }}
  - name: data
    persistentVolumeClaim: { claimName: {{ $claim | quote }} }
  {{- end }}
  {{- if $cp.store.existingSecret }}
  - name: store
    secret: { secretName: {{ $cp.store.existingSecret | quote }}, defaultMode: 0440 }
  {{- end }}
  {{- if $files }}
  - name: config
    projected:
      sources:
        - configMap:
            name: {{ include "leaseway.fullname" . }}-config
            items:
              {{- if $cp.config.system }}
              - { key: system.yaml, path: system.yaml }
              {{- end }}
              {{- range $tenant, $_ := $cp.config.tenants }}
              - { key: {{ include "leaseway.tenantKey" $tenant }}, path: {{ printf "tenants/%s.yaml" $tenant | quote }} }
              {{- end }}
  {{- end }}
{{- end }}
